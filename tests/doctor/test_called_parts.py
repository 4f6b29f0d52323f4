"""Loops that never call the whole model: what they call instead is examined, and named, as the whole would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import Decoder, batch, groups, rules
from doctor.model_faults import copied_head, mixes_rows, no_mask, one_place
from limpid.doctor import Doctor

Loss = Callable[[nn.Module, Tensor], Tensor]


class Body(nn.Module):
    """A decoder without its head."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.tokens, self.places, self.blocks, self.norm = decoder.tokens, decoder.places, decoder.blocks, decoder.norm

    def forward(self, ids: Tensor) -> Tensor:
        assert self.places is not None
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class Holder(nn.Module):
    """Modules in attributes, and no forward method: a LightningModule without Lightning."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def one(decoder: Decoder) -> tuple[nn.Module, Loss]:
    return Holder(model=decoder), lambda holder, ids: holder.model(ids)


def body_and_head(decoder: Decoder) -> tuple[nn.Module, Loss]:
    return Holder(body=Body(decoder), head=decoder.head), lambda holder, ids: holder.head(holder.body(ids))


def student_and_teacher(decoder: Decoder) -> tuple[nn.Module, Loss]:
    def logits(holder: Any, ids: Tensor) -> Tensor:
        with torch.no_grad():
            holder.teacher(ids)
        out: Tensor = holder.student(ids)
        return out

    return Holder(teacher=Decoder().requires_grad_(False), student=decoder), logits


def by_a_method(decoder: Decoder) -> tuple[nn.Module, Loss]:
    """The parts of a model that has a forward method, and a loop that does not call it."""

    def logits(model: Any, ids: Tensor) -> Tensor:
        out: Tensor = model[1](model[0](ids))
        return out

    return nn.Sequential(Body(decoder), decoder.head), logits


WRAPPERS = [one, body_and_head, student_and_teacher, by_a_method]


def trained(model: nn.Module, logits: Loss, steps: int = 2, watched: bool = True, say: Any = False) -> Doctor | None:
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    doctor = limpid.watch(model, optimizer, say=say) if watched else None
    for step in range(steps):
        ids, labels = batch(step)
        loss = F.cross_entropy(logits(model, ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if doctor is not None:
            doctor.step(loss, (ids, labels))
    if doctor is not None:
        doctor.close()
    return doctor


def healthy(decoder: Decoder) -> None: ...


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize(
    ("fault", "named"),
    [(no_mask, "not-causal"), (copied_head, "tied-weights-apart"), (one_place, "positions-ignored"), (healthy, "")],
)
def test_a_fault_is_named_in_every_wrapper(wrap: Any, fault: Any, named: str) -> None:
    decoder = Decoder()
    fault(decoder)
    doctor = trained(*wrap(decoder))
    assert doctor is not None
    assert doctor.skipped == {}
    assert rules(doctor.findings)[:1] == ([named] if named else [])


def test_rows_that_mix_are_named_by_the_model_in_an_attribute() -> None:
    decoder = Decoder()
    mixes_rows(decoder)
    doctor = trained(*one(decoder))
    assert doctor is not None
    assert "batch-leaks" in rules(doctor.findings)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_to_look_for_parts_changes_nothing(wrap: Any) -> None:
    called, found = nn.Module.__call__, []
    for watched in (False, True):
        model, logits = wrap(Decoder())
        torch.manual_seed(1)
        trained(model, logits, watched=watched)
        found.append([*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()])
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert nn.Module.__call__ is called
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_the_loop_computes_between_parts_is_said() -> None:
    said: list[str] = []
    model, _ = body_and_head(Decoder())
    trained(model, lambda holder, ids: holder.head(2 * holder.body(ids)), say=said.append)
    (line,) = said
    assert "passes of the doctor's own, which" in line
    assert "because: the loop itself computes between the parts body and head" in line


def test_a_loop_that_calls_no_module_is_told_that_nothing_was_examined() -> None:
    model = Holder(head=nn.Linear(24, 97))
    doctor = trained(
        model, lambda holder, ids: F.linear(ids[:, None].float(), holder.head.weight).expand(-1, 24, -1), 4
    )
    assert doctor is not None
    assert "neither the model nor a part of it" in doctor.skipped["model and batch"]
    assert any("not examined: model and batch" in text for text in str(doctor.description).split("\n"))


def test_a_part_that_is_given_nothing_of_the_pass_is_none_of_it() -> None:
    """A critic of states that are held fast, before and after the backward pass."""
    decoder = Decoder()
    model = Holder(body=Body(decoder), head=decoder.head, critic=nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(2):
            ids, labels = batch(step)
            states = model.body(ids)
            logits = model.head(states)
            guess = model.critic(states.detach()).mean()
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            (guess - 1).square().backward()
            (model.critic(states.detach()).mean() - 1).square().backward()
            optimizer.step()
            doctor.step(batch=(ids, labels))
    assert doctor.skipped == {}
    assert rules(doctor.findings) == []
    page = str(doctor.description)
    assert "1 forward pass with gradients make an update" in page
    assert "its parts are: body, head" in page
    assert "moves the outputs at 12 to 23 of 24" in page


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize(("fault", "named"), [(no_mask, "not-causal"), (one_place, "positions-ignored"), (healthy, "")])
def test_a_fault_is_named_before_the_first_step(wrap: Any, fault: Any, named: str) -> None:
    decoder = Decoder()
    fault(decoder)
    model, logits = wrap(decoder)

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(logits(model, given[0]).flatten(0, 1), given[1].flatten())

    with limpid.watch(model, torch.optim.AdamW(groups(model), lr=1e-3), say=False) as doctor:
        found = doctor.preflight(batch(0), loss=loss)
        assert doctor.skipped == {}
    assert rules(found)[:1] == ([named] if named else [])
