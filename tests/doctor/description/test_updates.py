"""Zeros of gradients, sizes of updates, and weights that are changed between updates."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder
from limpid.doctor.description import Description


class Loop:
    """Next tokens; `changed` is called before each step, `hooked` once."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Decoder()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.changed: Callable[[int], None] = lambda step: None

    def run(self, steps: int = 3) -> Description:
        with limpid.watch(self.model, self.optimizer, say=False) as doctor:
            for step in range(steps):
                self.changed(step)
                ids = torch.randint(4, VOCAB, (4, 17))
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
                self.optimizer.step()
                doctor.step(loss)
        assert dict(doctor.skipped) == {}
        assert doctor.description is not None
        return doctor.description


def table(model: nn.Module) -> tuple[str, nn.Parameter]:
    name, module = next(
        (n, m) for n, m in model.named_modules() if isinstance(m, nn.Embedding) and len(m.weight) == VOCAB
    )
    return f"{name}.weight", module.weight


def test_rows_of_a_table_that_a_hook_clears() -> None:
    loop = Loop()
    name, weight = table(loop.model)
    kept = torch.zeros(VOCAB, 1)
    kept[:12] = 1
    weight.register_hook(lambda gradient: gradient * kept)
    told = "\n".join(loop.run().of("gradient"))
    line = next(line for line in told.splitlines() if name in line)
    assert line.startswith(f"rows of {name} with a gradient: ")
    assert f" of {VOCAB}; none though in the batch: " in line


def test_a_table_that_learns_its_tokens_is_not_told() -> None:
    loop = Loop()
    assert table(loop.model)[0] not in "\n".join(loop.run().of("gradient"))


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_that_the_loop_changes_before_the_update(turned: bool) -> None:
    """As compression does; clipping is one factor."""
    loop = Loop()
    step = loop.optimizer.step

    def changed() -> None:
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        for p in loop.model.parameters():
            if turned and p.ndim == 2 and p.grad is not None:
                p.grad.copy_(p.grad.flip(0))
        step()

    loop.optimizer.step = changed  # type: ignore[method-assign]
    told = "\n".join(loop.run().of("gradient"))
    line = "changed between the last backward pass and the update, not by one factor: cosine of before and after 0."
    assert (line in told) is turned


def test_zeros_of_the_gradient() -> None:
    loop = Loop()
    for parameter in loop.model.parameters():
        if parameter.ndim == 2:
            parameter.register_hook(lambda gradient: gradient * (torch.arange(len(gradient)) % 2)[:, None])
    assert "of the gradient's entries are exactly 0, tables left out" in "\n".join(loop.run().of("gradient"))


@pytest.mark.parametrize("detached", [True, False])
def test_rounded_weights_whose_gradient_is_that_of_their_scale(detached: bool) -> None:
    """As w + (rounded - w), of which a gradient reaches w only where the bracket is detached."""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.abs().mean()
            made = (self.weight / scale).detach().round().clamp(-1, 1) * scale
            added = made - self.weight
            return F.linear(x, self.weight + (added.detach() if detached else added), self.bias)

    loop = Loop()
    for block in loop.model.blocks:
        block.up.__class__ = Rounded
    told = "\n".join(loop.run().of("gradient"))
    line = "entries of the gradients of blocks.*.up.weight (2 matrices) have one size, zeros left out"
    assert (line in told) is not detached


def test_how_far_weights_move_for_their_rate() -> None:
    loop = Loop()
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), lr=1e-3)  # its first step is the gradient's sign
    assert "1 times in the first update" in "\n".join(loop.run().of("update"))


@pytest.mark.parametrize("frozen", [False, True])
def test_an_update_that_two_optimizers_make(frozen: bool) -> None:
    """Of tables by the first, of the rest by the second; or nothing of the tables at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
    parts = [torch.optim.Adam(model[0].parameters(), lr=2e-2), torch.optim.Adam(model[1].parameters(), lr=1e-3)]
    with limpid.watch(model, parts, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, 12, (64,))
            loss = F.cross_entropy(model[1](model[0](ids).detach() if frozen else model[0](ids)), (ids + 1) % 12)
            for one in parts:
                one.zero_grad()
            loss.backward()
            for one in parts:
                one.step()
            doctor.step(loss, ids)
    assert doctor.description is not None
    told = ["\n".join(doctor.description.of(section)) for section in ("gradient", "update")]
    assert ("no gradient so far: 0.weight" in told[0]) is frozen  # of two layers by its number
    moved = dict(re.findall(r"group (\d): .*; its tensors move by (\S+) of their size", told[1]))
    assert set(moved) == ({"1"} if frozen else {"0", "1"})
    assert (f"most 0.weight ({moved.get('0')})" in told[1]) is not frozen


def test_weights_that_something_else_changes() -> None:
    loop = Loop()
    weight = next(p for p in loop.model.parameters() if p.ndim == 2)

    def changed(step: int) -> None:
        if step == 2:
            with torch.no_grad():
                weight.mul_(0.9)

    loop.changed = changed
    told = "\n".join(loop.run().of("run"))
    assert "changed by something else than the update: " in told
    assert "(1 of 29), after step 2, by up to 0.1 of their size; the optimizer's moments were kept" in told


def test_weights_that_stay_are_not_told() -> None:
    told = "\n".join(Loop().run().of("run"))
    assert "had left them" not in told
    assert "something else" not in told
    assert "weights now" not in told


def test_masters_that_are_read_back() -> None:
    loop = Loop()
    loop.model.bfloat16()
    masters = [p.detach().float().requires_grad_() for p in loop.model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)
    with limpid.watch(loop.model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(4, VOCAB, (4, 17))
            loss = F.cross_entropy(loop.model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            with torch.no_grad():
                for master, p in zip(masters, loop.model.parameters(), strict=True):
                    master.copy_(p)  # what bfloat16 has rounded away is lost
                    master.grad, p.grad = p.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, loop.model.parameters(), strict=True):
                    p.copy_(master)
            doctor.step(loss)
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("run"))
    assert (
        "tensors of the optimizer outside of the model were other than the last update had left them before 2 of 2"
        in told
    )


def test_an_optimizer_of_ones_own_without_eps() -> None:
    class Plain(torch.optim.Optimizer):
        """Adam without corrections, whose groups do not say their ε."""

        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999)})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    for name in ("exp_avg", "exp_avg_sq"):
                        state.setdefault(name, torch.zeros_like(p))
                    gradient: Tensor = p.grad
                    state["exp_avg"].lerp_(gradient, 0.1)
                    state["exp_avg_sq"].lerp_(gradient.square(), 0.001)
                    p.sub_(group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8))

    loop = Loop()
    loop.optimizer = Plain(list(loop.model.parameters()))
    line = next(line for line in loop.run().of("update") if line.startswith("their change is"))
    first = float(line.partition("the median; ")[2].split()[0])
    assert first == pytest.approx(0.1 / 0.001**0.5, rel=0.02)


class Offsets(nn.Module):
    """Adds a learned number for each offset of two places, whose index leaves most of the table out, or none of it."""

    def __init__(self, stride: int, turned: bool) -> None:
        super().__init__()
        self.linear, self.turned = nn.Linear(9, 9), turned
        self.numbers = nn.Parameter(torch.zeros(25, 2).T.clone() if turned else torch.zeros(25, 2))
        at = torch.cartesian_prod(torch.arange(3), torch.arange(3))
        apart = at[:, None] - at + 2
        self.index = apart[..., 0] * stride + apart[..., 1]

    def forward(self, x: Tensor) -> Tensor:
        table = self.numbers.T if self.turned else self.numbers
        made: Tensor = self.linear(x) @ table[self.index].sum(-1).softmax(1)
        return made


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("stride", [1, 5])
def test_rows_of_an_own_table_that_are_never_asked_for(stride: int, turned: bool) -> None:
    torch.manual_seed(0)
    model = Offsets(stride, turned)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = (model(torch.randn(8, 9)) - torch.randn(8, 9)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    said = [one for one in doctor.description.of("gradient") if "numbers with a gradient" in one]
    what = "columns" if turned else "rows"
    assert said == ([f"{what} of numbers with a gradient: 0 to 8 of 25"] if stride == 1 else [])


def test_a_norm_that_has_gradients_of_what_nobody_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    groups = [{"params": [model[1].weight], "lr": 0.1}, {"params": [model[1].bias], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            doctor.step(loss)
    told = " ".join(str(doctor.description).split())
    assert "clipped to 0.1; in its norm are 2 tensors that no optimizer has: 0.bias, 0.weight" in told
    assert "group 1: 0 matrices and 1 vector, 1 numbers, rate 0.01: 1.bias; its tensors move by" in told.replace(
        "*", "1"
    )


@pytest.mark.parametrize(("between", "said"), [("nothing", "left as they were"), ("cleared", "cleared")])
def test_gradients_between_the_passes_of_a_step(between: str, said: str) -> None:
    """Two passes that add up; or of which the first only says where the second is made (Foret et al. 2021, SAM)."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            climb = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            if between == "cleared":
                for p, way in zip(model.parameters(), climb, strict=True):
                    p.data.add_(way, alpha=0.1)
                    p.grad = None
            loss = model(x).square().mean()
            loss.backward()
            if between == "cleared":
                for p, way in zip(model.parameters(), climb, strict=True):
                    p.data.sub_(way, alpha=0.1)
            optimizer.step()
            doctor.step(loss, x)
    assert doctor.description is not None
    moved = "weights moved" if between == "cleared" else "weights did not move"
    assert f"between its 2 backward passes gradients were {said}; {moved} there" in doctor.description.of("gradient")
