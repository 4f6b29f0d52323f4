"""Two recordings of one step: equal, apart by rounding, or one of them wrong, and then where."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import limpid
from limpid.cli import main
from limpid.errors import CheckpointError, ConfigError
from limpid.operations import Compared, compare

TOKENS = torch.arange(24).view(2, 12) % 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ByHand(nn.Module):
    """A layer norm of single operations."""

    def __init__(self, norm: nn.LayerNorm, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Planted(TorchDispatchMode):
    """One call of an operation gives 3% more."""

    def __init__(self, operation: str, number: int) -> None:
        super().__init__()
        self.operation, self.left = operation, number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self.operation == str(func):
            if self.left == 0:
                (made[0] if isinstance(made, tuple) else made).mul_(1.03)
            self.left -= 1
        return made


def recorded(
    folder: Path,
    change: Callable[[Net], Any] = lambda net: net,
    below: TorchDispatchMode | None = None,
    calls: bool = True,
) -> Path:
    torch.manual_seed(0)
    net = Net()
    change(net)
    form = next(net.parameters()).dtype
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with below or contextlib.nullcontext(), limpid.recording(net, optimizer, keep=folder, calls=calls):
        loss = functional.cross_entropy(net(TOKENS).float().flatten(0, 1), TOKENS.flatten())
        loss.backward()
        optimizer.step()
    assert form == next(net.parameters()).dtype
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("recordings") / "plain")


def by_hand(eps: float) -> Callable[[Net], None]:
    def change(net: Net) -> None:
        net.blocks[2].norm = ByHand(net.blocks[2].norm, eps)  # type: ignore[arg-type, assignment]

    return change


def test_the_same_step_twice_is_equal_to_the_bit(plain: Path, tmp_path: Path) -> None:
    found = compare(plain, recorded(tmp_path / "again"))
    assert (found.verdict, found.places) == ("equal", [])
    assert found.document().aligned == len(found.a.document.calls)


def test_another_format_is_rounding(plain: Path, tmp_path: Path) -> None:
    found = compare(plain, recorded(tmp_path / "bf16", lambda net: net.bfloat16()))
    assert found.verdict == "rounding", found.places
    assert ("float32", "bfloat16") in [row[:2] for row in found.document().formats]
    assert max(one.output or 0 for one in found.document().modules) > 1e-3


@pytest.mark.parametrize(
    ("operation", "number", "module", "phase"),
    [
        ("aten.gelu.default", 1, "blocks.1", "forward"),
        ("aten.native_layer_norm.default", 2, "blocks.2.norm", "forward"),
        ("aten.addmm.default", 3, "blocks.1.down", "forward"),
        ("aten.gelu_backward.default", 0, "blocks.2", "backward"),
        ("aten.embedding_dense_backward.default", 0, "embed", "backward"),
    ],
)
def test_a_fault_on_one_side_is_named_at_its_call(
    operation: str, number: int, module: str, phase: str, plain: Path, tmp_path: Path
) -> None:
    found = compare(plain, recorded(tmp_path / "faulty", below=Planted(operation, number)))
    assert found.verdict == "beyond rounding"
    place, *others = found.places
    assert (place.kind, place.name, place.module, place.phase, place.side) == ("call", operation, module, phase, "b")
    assert others == []
    assert compare(found.b.folder, plain).places[0].side == "a"


def test_another_argument_is_named(plain: Path, tmp_path: Path) -> None:
    def change(net: Net) -> None:
        net.blocks[1].norm.eps = 1e-3  # type: ignore[union-attr]

    found = compare(plain, recorded(tmp_path / "eps", change))
    assert found.verdict == "another computation"
    assert found.places[0].module == "blocks.1.norm"
    assert found.places[0].said == "eps is 1e-05 against 0.001"


def test_a_module_of_other_operations_is_judged_by_what_it_gives(plain: Path, tmp_path: Path) -> None:
    same = compare(plain, recorded(tmp_path / "same", by_hand(1e-5)))
    assert same.verdict == "rounding", same.places
    assert {one.module for one in same.document().one_sided} == {"blocks.2.norm"}
    other = compare(plain, recorded(tmp_path / "other", by_hand(1e-3)))
    assert other.verdict == "beyond rounding"
    assert (other.places[0].kind, other.places[0].module) == ("module", "blocks.2.norm")


def test_parameters_that_differ_before_the_step_are_said_first(plain: Path, tmp_path: Path) -> None:
    def change(net: Net) -> None:
        with torch.no_grad():
            net.head.bias[3] += 0.5

    found = compare(plain, recorded(tmp_path / "moved", change))
    assert found.verdict == "another start"
    assert (found.places[0].kind, found.places[0].name) == ("parameter", "head.bias")


def test_without_calls_modules_and_gradients_are_compared(plain: Path, tmp_path: Path) -> None:
    found = compare(plain, recorded(tmp_path / "uncalled", calls=False))
    assert found.verdict == "equal"
    assert not found.b.document.calls
    faulty = compare(plain, recorded(tmp_path / "faulty", below=Planted("aten.gelu.default", 1), calls=False))
    assert faulty.verdict == "beyond rounding"
    assert faulty.places[0].module == "blocks.1.down"  # the first module that is given what is wrong
    backward = Planted("aten.gelu_backward.default", 0)
    late = compare(plain, recorded(tmp_path / "late", below=backward, calls=False))
    assert {place.kind for place in late.places} == {"gradient"}


def test_what_is_compared_is_typed(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faulty = recorded(tmp_path / "faulty", below=Planted("aten.gelu.default", 1))
    assert main(["compare", str(plain), str(faulty)]) == 1
    said = capsys.readouterr().out
    assert "✗ beyond rounding" in said
    assert "call gelu in the second  forward blocks.1" in said
    assert main(["compare", str(plain), str(plain), "--json"]) == 0
    assert '"verdict": "equal"' in capsys.readouterr().out
    assert main(["trace", str(plain)]) == 0
    assert "blocks.0 … 2  3 alike" in capsys.readouterr().out


def test_what_is_no_recording_is_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no recording"):
        compare(plain, tmp_path)
    with pytest.raises(ConfigError, match="holds something: a recording is kept in a new folder"):
        recorded(plain)
    with pytest.raises(ConfigError, match="which records nothing without keep"):
        limpid.recording(nn.Identity(), calls=False)
    cut = recorded(tmp_path / "cut")
    (cut / "values-0000.safetensors").write_bytes(b"12")
    with pytest.raises(CheckpointError, match="cannot be read: record the step again"):
        str(compare(plain, cut))
    (cut / "recording.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read as a recording"):
        compare(plain, cut)


def test_keeping_holds_no_more_in_memory_than_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.operations import kept

    monkeypatch.setattr(kept, "WAITING", 4096)
    found = kept.read(recorded(tmp_path / "many"))
    files = sorted(found.folder.glob("values-*.safetensors"))
    assert len(files) > 20
    assert max(file.stat().st_size for file in files) < 40_000
    again: Compared = compare(found.folder, recorded(tmp_path / "whole"))
    assert again.verdict == "equal"


def test_a_notebook_shows_verdict_modules_and_places(plain: Path, tmp_path: Path) -> None:
    from limpid.operations.notebook import page

    found = compare(plain, recorded(tmp_path / "faulty", below=Planted("aten.gelu.default", 1)))
    said = found._repr_html_()
    assert "beyond rounding" in said
    assert "aten.gelu.default" in said
    shown = page(found.b.document)
    assert "100% of the arithmetic" in shown
    assert "0 … 2 (3 alike)" in shown
    assert "<script" not in shown + said
