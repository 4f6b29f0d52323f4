"""Compiled code under a recording: it runs as it was written, and its compiled form is held against that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.compiled_regions import Fault, one_entry, scaled
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

import limpid
from limpid.jsonable import to_json
from limpid.operations import compiled
from limpid.operations.document import recording_from
from limpid.operations.region import Region, Verdict
from limpid.operations.report import Report

HONEST = Fault(None).backend


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop(self.down(functional.gelu(self.up(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 16), nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.fixture(autouse=True)
def _compiled_anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def recorded(net: nn.Module, function: Callable[[Tensor], Tensor] = lambda x: x) -> Report:
    with limpid.recording(net) as step:
        function(net(torch.randn(5, 8))).square().mean().backward()
    return step.verify()


def spoiled(target: str, change: Callable[[Tensor], Tensor], phase: str = "forward") -> Any:
    """A backend that spoils every call of one operation, of the forward or the backward graph."""

    def compiler(of: str) -> Callable[[fx.GraphModule, Any], Any]:
        def compiled(graph: fx.GraphModule, _: Any) -> Any:
            for node in [one for one in graph.graph.nodes if target in str(one.target) and of == phase]:
                with graph.graph.inserting_after(node):
                    other = graph.graph.call_function(change, (node,))
                node.replace_all_uses_with(other, delete_user_cb=lambda user, own=other: user is not own)
            graph.recompile()
            return make_boxed_func(graph.forward)

        return compiled

    return aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_honest_regions_hold_and_stay_compiled(fullgraph: bool) -> None:
    net = Net()
    for block in net.blocks:
        block.compile(backend=HONEST, fullgraph=fullgraph)
    net(torch.randn(5, 8)).sum().backward()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    report = recorded(net)
    assert [(one.module, one.name, one.verdict) for one in report.regions] == [
        ("blocks.0", "Block", Verdict.HOLDS), ("blocks.1", "Block", Verdict.HOLDS)]  # fmt: skip
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert "Compiled" in type(net.blocks[0](torch.randn(5, 16)).grad_fn).__name__
    assert str(report).splitlines()[0].endswith("compiled code ran as written, 2 of 2 regions hold")
    assert report.document().verdict == "holds"
    assert report.checked == 1


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("change", [scaled, one_entry])
def test_a_fault_of_the_compiler_is_named(change: Callable[[Tensor], Tensor], phase: str) -> None:
    net = Net()
    net.blocks[1].compile(backend=spoiled("mm", change, phase))
    report = recorded(net)
    [one] = report.compiled_otherwise
    assert one.module == "blocks.1"
    assert phase == "forward" or "another gradient of " in one.said
    document = report.document()
    assert document.verdict == "compiled otherwise"
    assert recording_from(to_json(document)) == document
    assert not report.wrong


def test_the_step_and_what_it_leaves_are_as_without_a_recording() -> None:
    gradients = []
    for is_recorded in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = Net()
        for block in net.blocks:
            block.compile(backend=HONEST)
        x = torch.randn(5, 8)
        if is_recorded:
            with limpid.recording(net):
                net(x).square().mean().backward()
        else:
            with torch.compiler.set_stance("force_eager"):
                net(x).square().mean().backward()
        gradients.append([torch.rand(1), *(one.grad for one in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def only(report: Report) -> Region:
    [one] = report.regions
    return one


def test_a_whole_model_and_a_function_are_regions() -> None:
    whole = only(recorded(torch.compile(Net(), backend=HONEST)))
    assert (whole.name, whole.verdict) == ("Net", Verdict.HOLDS)
    double = torch.compile(lambda x: x.sin() * 2, backend=HONEST)
    function = only(recorded(Net(), double))
    assert function.verdict is Verdict.HOLDS
    assert function.source.startswith("test_compiled.py:")


def test_the_first_call_of_a_region_is_compared_and_all_are_counted() -> None:
    net = Net()
    net.blocks[1] = net.blocks[0]
    net.blocks[0].compile(backend=HONEST)
    assert only(recorded(net)).calls == 2


def test_what_draws_or_is_not_compiled_is_said_to_be_unchecked() -> None:
    net = Net()
    net.blocks[0].drop = nn.Dropout(0.5)
    net.blocks[0].compile(backend=HONEST)
    report = recorded(net)
    assert "not checked: it draws random numbers" in only(report).said
    assert "0 of 1 regions hold" in str(report)

    def breaks(_: Any, __: Any) -> Any:
        raise ValueError("no backend")

    net = Net()
    net.blocks[0].compile(backend=breaks)
    assert "not checked: " in only(recorded(net)).said


def test_where_pytorch_does_not_tell_compiled_modules_are_named_as_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "ASKS", "another_name")
    net = Net()
    net.blocks[1].compile(backend=HONEST)
    one = only(recorded(net))
    assert one.module == "blocks.1"
    assert "does not tell when compiled code is called" in one.said


def test_a_fault_of_the_loss_alone_is_seen_beside_logits() -> None:
    class WithLoss(Net):
        def forward(self, x: Tensor) -> Any:
            logits = 1e4 * super().forward(x)
            return (logits / 1e4).square().mean(), logits

    net = WithLoss()
    net.compile(backend=spoiled("div", scaled, "backward"))
    with limpid.recording(net) as step:
        net(torch.randn(5, 8))[0].backward()
    assert only(step.verify()).verdict is Verdict.OTHER


def test_sixteen_bits_and_autocast_hold() -> None:
    net = Net().bfloat16()
    net.compile(backend=HONEST)
    with limpid.recording(net) as step:
        net(torch.randn(5, 8).bfloat16()).float().square().mean().backward()
    assert only(step.verify()).verdict is Verdict.HOLDS
    torch._dynamo.reset()
    net = Net()
    net.compile(backend=HONEST)
    with limpid.recording(net) as step, torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(5, 8)).float().square().mean().backward()
    assert only(step.verify()).verdict is Verdict.HOLDS


def test_a_recording_that_looks_at_no_call_runs_compiled_code(tmp_path: Any) -> None:
    net = Net()
    net.compile(backend=HONEST)
    with limpid.recording(net, keep=tmp_path / "kept", calls=False):
        made = net(torch.randn(5, 8))
    assert "Compiled" in type(made.grad_fn).__name__
