"""Losses, their gradients and their metrics beside TRL's own code on the same log-probabilities, in float32."""

import pytest
import torch
from tests.objectives.recorded_objective import CONFIG, at, moved
from tests.objectives.test_preference import DPOS, KTOS, drawn

from limpid.comparison import trl_losses
from limpid.data.batches import MicroBatch
from limpid.objectives import DPO, Objective
from limpid.training.state import fresh_state
from limpid.training.step import Recorder, step

IN_TRL = [
    name for name, objective in DPOS.items() if not objective.reference_free and name not in ("smoothed", "ipo_sum")
]
PRECISION = at("fp32", CONFIG)


class Seen:
    """The log-probabilities of an engine's tokens, and the gradients that came to them."""

    log_p: torch.Tensor
    entropy: torch.Tensor
    bar: torch.Tensor

    def observe(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if name == "token_log_probabilities":
            self.log_p = value.detach().clone()
            value.register_hook(lambda bar: setattr(self, "bar", bar))
        return value

    def gradients(self, state: object) -> None:
        """Those of parameters are of no interest."""


def engine(objective: Objective) -> tuple[MicroBatch, Seen, float, dict[str, float]]:
    """A step away from the reference: its batch, its tokens, its loss, its metrics."""
    state, seen = fresh_state(PRECISION), Seen()
    batch = drawn(state, 1, 3)
    moved(state)
    logits = state.model(torch.as_tensor(batch["tokens"])).detach().float()
    seen.entropy = torch.distributions.Categorical(logits=logits).entropy()
    recorder: Recorder = seen
    outcome = step(state, [batch], PRECISION, objective, recorder)
    return batch, seen, outcome.loss, dict(outcome.metrics)


def agree(ours: dict[str, float], theirs: dict[str, float]) -> None:
    assert {name: theirs[name] for name in ours} == pytest.approx(ours, rel=2e-6, abs=1e-6)


@pytest.mark.parametrize("name", IN_TRL)
def test_dpo(name: str) -> None:
    objective: DPO = DPOS[name]
    batch, seen, loss, metrics = engine(objective)
    order = torch.tensor([0, 2, 4, 1, 3, 5])  # TRL's: all chosen answers, then all rejected ones
    log_p, mask = seen.log_p[order].requires_grad_(), torch.as_tensor(batch["mask"])[order]
    inputs = trl_losses.completions(log_p, mask) | {
        f"ref_{side}_logps": torch.as_tensor(batch[f"reference_{side}"]).float() for side in ("chosen", "rejected")
    }
    trainer = trl_losses.trainer(
        loss_types=[objective.loss_type], loss_weights=[1.0], beta=objective.beta,
        label_smoothing=objective.label_smoothing, f_divergence_type=objective.f_divergence_type,
        f_alpha_divergence_coef=objective.f_alpha_divergence_coef,
    )  # fmt: skip
    theirs = trl_losses.method("dpo_trainer.py", "_compute_loss")(
        trainer, trl_losses.model(log_p, seen.entropy[order]), inputs, False
    )
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(seen.bar[order], log_p.grad * mask, rtol=1e-5, atol=1e-7)
    agree(metrics, trl_losses.metrics(trainer))


def test_kto() -> None:
    objective = KTOS["kto"]
    batch, seen, loss, metrics = engine(objective)
    log_p = seen.log_p.clone().requires_grad_()
    mask, baseline = torch.as_tensor(batch["mask"]), torch.as_tensor(batch["baseline"]).float()
    inputs = trl_losses.completions(log_p, mask) | {
        "label": torch.as_tensor(batch["desirable"]).bool(), "ref_logps": torch.as_tensor(batch["reference"]).float(),
        "ref_KL_logps": torch.zeros_like(baseline),
    }  # fmt: skip
    trainer = trl_losses.trainer(
        loss_type="kto", beta=objective.beta, desirable_weight=objective.desirable_weight,
        undesirable_weight=objective.undesirable_weight, _compute_kl_logps=lambda model, batch: baseline,
    )  # fmt: skip
    theirs = trl_losses.method("kto_trainer.py", "_compute_loss")(
        trainer, trl_losses.model(log_p, seen.entropy), inputs, False
    )
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(seen.bar, log_p.grad * mask, rtol=1e-5, atol=1e-7)
    agree(metrics, trl_losses.metrics(trainer))
