"""What number is minimised."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.data import IGNORED
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Loop, after
from benchmarks.doctor.models import anatomy
from torch import Tensor, nn


def cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, **options)


def mean_of_means(loop: Loop) -> None:
    loop.loss = lambda logits, batch: cross_entropy(logits, batch[1]) / loop.settings.micro_batches


def not_divided(loop: Loop) -> None:
    loop.loss = lambda logits, batch: cross_entropy(logits, batch[1])


def summed(loop: Loop) -> None:
    loop.loss = lambda logits, batch: cross_entropy(logits, batch[1], reduction="sum")


def per_row(loop: Loop) -> None:
    """Summed over positions, averaged over rows."""
    loop.loss = lambda logits, batch: cross_entropy(logits, batch[1], reduction="sum") / len(batch[1])


def over_all_positions(loop: Loop) -> None:
    """Divided by all positions, masked ones included."""
    loop.loss = lambda logits, batch: cross_entropy(logits, batch[1], reduction="sum") / batch[1].numel()


def softmax_twice(loop: Loop) -> None:
    loop.loss = lambda logits, batch: cross_entropy(logits.softmax(-1), batch[1])


def sigmoid_first(loop: Loop) -> None:
    """Sigmoid before cross-entropy: another squashing, the same disease."""
    loop.loss = lambda logits, batch: cross_entropy(logits.sigmoid(), batch[1])


def transposed(loop: Loop) -> None:
    """(row, position, V) viewed as (row, V, position): classes and positions are mixed up without an error."""

    def loss(logits: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(logits.reshape(len(logits), logits.shape[-1], -1), batch[1])

    loop.loss = loss


def probability(loop: Loop) -> None:
    """-p of each target: nll_loss is given probabilities."""
    loop.loss = lambda logits, batch: F.nll_loss(
        logits.flatten(0, 1).softmax(-1), batch[1].flatten(), ignore_index=IGNORED
    )


def ends_in_softmax(loop: Loop) -> None:
    """The model's last layer is a softmax, and the loss applies another."""

    def end(module: nn.Module, given: Any, out: Any) -> Any:
        if not hasattr(out, "logits"):
            return out.softmax(-1)
        out.logits = out.logits.softmax(-1)
        return out

    def add(model: nn.Module) -> None:
        model.register_forward_hook(end)

    after(loop, "build", add)


def drift_by_loss(loop: Loop) -> None:
    """The loss rewards log Z: the logits rise together, which softmax does not see."""
    kept: dict[str, Tensor] = {}
    after(loop, "forward", lambda logits: kept.update(logits=logits))
    after(loop, "loss", lambda loss: loss - 0.6 * kept["logits"].logsumexp(-1).mean())


def drift_by_bias(loop: Loop) -> None:
    """A bias of the head that rises by the same amount for every word, a little more at each step."""

    def change(model: nn.Module) -> None:
        head = anatomy(model).head
        assert head is not None
        head.register_forward_hook(lambda module, given, out: out + 0.5 * loop.number)

    after(loop, "build", change)


def log_z(loop: Loop) -> float:
    """Mean log Z at the end of the run, nats."""
    loop.run()
    with torch.no_grad():
        return float(loop.forward(loop.batch(0, 0)).logsumexp(-1).mean())


def gradient(loop: Loop) -> Tensor:
    """Of the first step, before clipping."""
    loop.prepare()
    loop.clip = loop.update = loop.clear = lambda: None
    loop.step()
    return torch.cat([p.grad.flatten() for p in loop.model.parameters() if p.grad is not None])


def gradient_off(loop: Loop) -> float:
    """Relative distance of the step's gradient to that of the mean over all its labels."""
    healthy = Loop(loop.architecture, loop.seed, loop.settings)
    right, found = gradient(healthy), gradient(loop)
    return float((found - right).norm() / right.norm())


GRADIENT = Exact("distance to the gradient of the mean, relative", gradient_off, above(0.05))
UNEVEN = {"micro_batches": 4, "rows": 2, "labels": "uneven", "steps": 50}
FEW = {"labels": "few", "steps": 50}
LINEAR = {"steps": 100, "rate": 3e-3}

FAULTS = (
    Fault("LOS-01", "a mean of the means of micro-batches with 2 to 128 labels", mean_of_means,
          ("loss-mean-of-means",), GRADIENT, UNEVEN),
    Fault("LOS-02", "a sum over tokens", summed, ("loss-summed",), GRADIENT),
    Fault("LOS-02 rows", "a sum over positions, averaged over rows", per_row, ("loss-summed",), GRADIENT),
    Fault("LOS-02 steps", "four micro-batches added, not averaged", not_divided, ("accumulation-not-divided",),
          GRADIENT, {"micro_batches": 4, "rows": 4, "steps": 50}),
    Fault("LOS-02 masked", "divided by masked positions too", over_all_positions,
          ("loss-formula-unusual",), GRADIENT, FEW),
    Fault("LOS-03", "softmax before cross-entropy", softmax_twice, ("softmax-twice",), GRADIENT),
    Fault("LOS-03 model", "the model ends in a softmax", ends_in_softmax, ("softmax-twice",), GRADIENT),
    Fault("LOS-03 probability", "-p of the targets instead of -log p", probability,
          ("loss-formula-unusual", "probabilities-to-loss"), GRADIENT),
    Fault("LOS-03 sigmoid", "sigmoid before cross-entropy", sigmoid_first,
          ("softmax-twice", "loss-formula-unusual"), GRADIENT),
    Fault("LOS-03 view", "classes and positions mixed up by a reshape", transposed,
          ("loss-formula-unusual",), GRADIENT, {"steps": 50}),
    Fault("LOS-04", "the loss rewards log Z", drift_by_loss, ("logits-drift", "loss-formula-unusual"),
          Exact("mean log Z at the end, nats", log_z, lambda bad, good: bad > good + 5), LINEAR),
    Fault("LOS-04 bias", "every logit rises by 0.5 a step", drift_by_bias, ("logits-drift",),
          Exact("mean log Z at the end, nats", log_z, above(30)), architectures=("gpt2", "plain", "llama"),
          why_not="its logits are a product of the head's weight, the head itself is never called"),
)  # fmt: skip
