"""Steps of other people's models, every operation done again: no false verdict, and the step as it would be."""

import pytest
import torch
from torch import nn

import limpid
from limpid.operations import Report
from limpid.operations.call import Check
from operations.convolutions import rounds_once
from operations.models import MODELS, step_of

FORMATS = ["fp32", "autocast", "bf16", "fp64"]
NOT_ALL = {("convolutions", "bf16"), ("convolutions", "fp64"), ("Mixtral", "fp64")}
"""What PyTorch itself does not compute, or only with inputs of another format."""


def trained(name: str, form: str, record: bool) -> tuple[Report | None, nn.Module, torch.Tensor]:
    """A step with AdamW and clipping, recorded or not."""
    model, loss_of = step_of(name)
    model = model.to({"bf16": torch.bfloat16, "fp64": torch.float64}.get(form, torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            loss = loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    if not record:
        return None, model, step()
    with limpid.recording(model, optimizer) as recorded:
        loss = step()
    return recorded.verify(), model, loss


@pytest.mark.parametrize(("name", "form"), [(m, f) for m in MODELS for f in FORMATS if (m, f) not in NOT_ALL])
def test_an_honest_step_is_within_rounding_and_all_of_it_is_checked(name: str, form: str) -> None:
    report, *_ = trained(name, form, record=True)
    assert report is not None
    wrong = [call for call in report.wrong if rounds_once() or "convolution" not in call.operation]
    assert not wrong, str(wrong[0])
    assert not report.unchecked, str(report.unchecked[0])
    assert {call.phase for call in report.calls} == {"forward", "backward", "update"}
    assert "100.00% of the arithmetic checked" in str(report)


def test_recording_changes_no_bit_of_a_step() -> None:
    (_, one, loss), (_, other, plain) = trained("GPT-2", "autocast", True), trained("GPT-2", "autocast", False)
    assert torch.equal(loss, plain)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in one.modules())


def test_calls_stand_where_their_author_wrote_them() -> None:
    report, *_ = trained("Llama", "fp32", record=True)
    assert report is not None
    of_it = [call for call in report.calls if call.module == "model.layers.1.mlp.up_proj" and "mm" in call.operation]
    assert [call.phase for call in of_it] == ["forward", "backward", "backward"]  # of its input and of its weight
    assert {call.source.split(":")[0] for call in of_it} == {"modeling_llama.py"}
    assert {call.check for call in of_it} == {Check.REDONE}
    assert [part.name for part in report.by_module()].index("model.layers.0") < len(report.by_module())


def test_what_is_not_in_the_table_is_said_and_not_passed() -> None:
    values = torch.full((3,), 2.0)
    with limpid.recording(nn.Identity()) as recorded:
        torch.special.zeta(values + 1, values)
    report = recorded.verify()
    assert report.unchecked
    assert report.checked < 1
    assert "not checked: 1 × aten.special_zeta.default, not in the table" in str(report)


def test_what_is_written_over_its_own_input_is_redone_from_what_was_there() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    with limpid.recording(nn.Identity()) as recorded:
        torch.mul(values, 2, out=values)
        values[0].add_(values[1])
    assert [call.check for call in recorded.verify().calls if "mul" in call.operation] == [Check.REDONE]
    assert not recorded.verify().wrong
