"""One forward and backward pass of the loop's own loss before the first step, with everything put back afterwards."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from limpid.adjoints.adjoint import Adjoint
from limpid.adjoints.standing import standing
from limpid.adjoints.watch import Watch, watched
from limpid.doctor.calls import IGNORED, Call, find_logits, find_loss
from limpid.doctor.finding import Skipped
from limpid.doctor.heard_passes import HeardPasses
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.makers import maker
from limpid.doctor.micro_batches import Micro, call_for
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.shield import Shield
from limpid.doctor.undisturbed import seeded, undisturbed

CALLS = 2
"""Of each custom Function, whose backward passes are held against their forward passes."""
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def spread_out(prediction: Tensor, target: Tensor) -> bool:
    """Whether (n, 1) meets (n,), the one learned and the other given, so that n² differences come of n."""
    a, b = prediction.shape, target.shape
    if prediction.requires_grad == target.requires_grad or prediction.numel() != target.numel():
        return False
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    return len(longer) == len(shorter) + 1 and longer[-1] == 1 and longer[:-1] == shorter and shorter[-1:] > (1,)


SQUASHES = ("Sigmoid", "Softmax")


def made_by(value: Tensor) -> str:
    """sigmoid or softmax, where the tensor is what one of them returned, perhaps in another shape; else nothing."""
    return maker(value, SQUASHES).lower()


RANGES = {
    "relu": (0.0, math.inf),
    "softplus": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
}
"""What an activation can return."""


def reach(given: Tensor, target: Tensor) -> tuple[str, float, float, float, float] | None:
    """The last activation, its range, the share of the targets' variance beyond it, and the share of the targets."""
    name = maker(given, tuple(one.capitalize() for one in RANGES)).lower()
    if not name or not target.is_floating_point():
        return None
    low, high = RANGES[name]
    y = target.detach().float()
    beyond = y - y.clamp(low, high)
    spread = float(y.var(correction=0)) if y.numel() > 1 else 0.0
    return (
        name,
        low,
        high,
        float(beyond.square().mean()) / spread if spread else 0.0,
        float((beyond != 0).float().mean()),
    )


def divergence(outputs: Sequence[Tensor]) -> float | None:
    """KL of N(μ, σ²) from N(0, 1), nats a dimension, of outputs (…, μ, log σ²); Kingma & Welling 2013, appendix B."""
    if len(outputs) < 3 or outputs[1].shape != outputs[2].shape or outputs[1].shape == outputs[0].shape:
        return None
    mean, spread = (t.detach().float() for t in outputs[1:3])
    if mean.ndim != 2 or not outputs[1].is_floating_point() or mean.numel() > 2**20:
        return None
    return float(0.5 * (mean.square() + spread.exp() - 1 - spread).mean())


def explained(given: Tensor, target: Tensor) -> tuple[float, float] | None:
    """The share of the targets' variance that predictions explain, and that they have themselves."""
    y, prediction = (t.detach().float().flatten() for t in (target, given))
    spread = float(y.var(correction=0)) if y.numel() > 1 else 0.0
    if not spread > 0 or target.requires_grad:
        return None
    return 1 - float((prediction - y).square().mean()) / spread, float(prediction.var(correction=0)) / spread


class Differences(TorchFunctionMode):
    """Looks for such a pair in everything that is computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Shapes | None = None
        self.skipped = Skipped()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        with self.skipped.noting("differences"):
            a, b = (*args, None, None)[:2]
            made = isinstance(out, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)
            if made and (out.ndim == 0 or out.numel() == a.numel() * a.shape[0]) and spread_out(a, b):
                self.shapes = tuple(a.shape), tuple(b.shape)
        return out


COARSEST = 0.02
"""Change of the loss that the longest step along the gradient should make, as a share of it."""
RESOLVED = 16 * torch.finfo(torch.float32).eps
"""Length of that step over the weights' from which on their rounding is a thirtieth of it."""


@dataclass
class TrialPass:
    """What the pass showed."""

    loss: float = float("nan")
    calls: list[Call] = field(default_factory=list)
    loss_gradients: list[LossGradient] = field(default_factory=list)
    norms: dict[str, float | None] = field(default_factory=dict)  # of each parameter's gradient; None without one
    slope: float | None = None  # observed change of the loss along the gradient over the predicted one
    adjoints: list[Adjoint] = field(default_factory=list)  # backward passes by hand, held against their forward passes
    no_graph: bool = False  # the loss does not depend on any parameter
    spread_out: Shapes | None = None  # of predictions and targets that were compared all with all


def try_once(
    info: ModelInfo,
    batch: Any,
    micros: list[Micro],
    loss: Callable[..., Any] | None,
    loss_function: Callable[..., Any] | None,
) -> TrialPass:
    """Run the loss once and back; then twice more along the gradient, to see whether it is one."""
    seen, model = TrialPass(), info.model
    compute = loss_of(model, batch, micros, loss, loss_function, info.device)
    heard = HeardPasses(info, seen.loss_gradients.append)
    by_hand = _watch(model)
    own = [function for function in (loss, loss_function) if function is not None]
    with undisturbed(Shield(model, own), gradients=True):
        seeded()
        with heard.listening(), Differences() as differences, watched(by_hand):
            value = compute()
        seen.spread_out = differences.shapes
        seen.calls += [call.detached() for call in heard.calls]
        seen.loss = float(value.detach())
        if not value.requires_grad:
            seen.no_graph = True
            return seen
        seen.loss_gradients.clear()  # of looks on the way to the loss, as for an attack on the input
        heard.forget()
        value.backward()
        seen.adjoints = by_hand.found
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                gradient = gradient.coalesce().values()
            seen.norms[name] = None if gradient is None else float(gradient.detach().float().norm())
        seen.slope = _slope(model, compute, abs(seen.loss) or 1.0)
    return seen


def _watch(model: nn.Module) -> Watch:
    names = {id(module): name for name, module in model.named_modules()}
    return Watch(model, partial(standing, names), contextlib.nullcontext, CALLS)


def held_against_forward(model: nn.Module, call: Call, shield: Shield) -> list[Adjoint]:
    """The custom Functions of one forward pass, each held against it, along gradients of the outputs that are drawn."""
    by_hand = _watch(model)
    with undisturbed(shield, gradients=True):
        seeded()
        with watched(by_hand):
            made = call.make(model)
        given = [made] if isinstance(made, Tensor) else made.values() if isinstance(made, Mapping) else made
        outputs = [t for t in given if isinstance(t, Tensor) and t.requires_grad] if isinstance(given, Iterable) else []
        if outputs:
            torch.autograd.backward(outputs, [torch.randn_like(t) for t in outputs])
    return by_hand.found


def loss_of(
    model: nn.Module,
    batch: Any,
    micros: list[Micro],
    loss: Callable[..., Any] | None,
    loss_function: Callable[..., Any] | None,
    device: torch.device,
) -> Callable[[], Tensor]:
    """The loss as the user computes it, or as a plain loop would."""
    if callable(loss):
        return lambda: _scalar(loss(model, batch))
    call, micro = call_for(model, micros[0], device), micros[0]

    def plain() -> Tensor:
        output = call.make(model)
        own, logits = find_loss(output), find_logits(output)
        if own is not None and loss_function is None:
            return own
        if logits is None:
            raise ValueError("the model returns neither logits nor a loss: give preflight loss=callable(model, batch)")
        targets = micro.labels
        if targets is None and micro.ids is not None:
            targets = torch.cat([micro.ids[:, 1:], torch.full_like(micro.ids[:, :1], IGNORED)], 1)
        if targets is None:
            raise ValueError("no targets in this batch: give preflight loss=callable(model, batch)")
        targets = targets.to(logits.device)
        if loss_function is None:
            return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED)
        try:
            return _scalar(loss_function(logits, targets))
        except (RuntimeError, ValueError):
            return _scalar(loss_function(logits.flatten(0, -2), targets.flatten()))

    return plain


def _scalar(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    loss = find_loss(value)
    if loss is None:
        raise ValueError(f"loss gave {type(value).__name__}, expected one number")
    return loss


def _slope(model: nn.Module, compute: Callable[[], Tensor], size: float) -> float | None:
    """(L(θ + εd) - L(θ - εd)) / (2 ε g·d) for d = g/‖g‖, with ε shrunk while the ratio is off; size is the loss's."""
    trained = [p for p in model.parameters() if p.grad is not None and p.requires_grad and not p.grad.is_sparse]
    if not trained or any(p.dtype in (torch.float16, torch.bfloat16) for p in trained):
        return None
    gradients = [p.grad.detach().clone() for p in trained if p.grad is not None]
    length = float(torch.stack([g.float().norm() for g in gradients]).norm())
    if not length or length != length or length == float("inf"):
        return None
    kept = [p.data for p in trained]
    far = COARSEST * size / 2 / length
    if far < RESOLVED * float(torch.stack([p.float().norm() for p in kept]).norm()):
        return None
    closest: float | None = None
    try:
        with torch.no_grad():
            for change in (size * share for share in (COARSEST, 0.004, 0.0008, 0.00016)):  # predicted, of the loss
                values = []
                for sign in (1.0, -1.0):
                    for parameter, start, gradient in zip(trained, kept, gradients, strict=True):
                        parameter.data = start + gradient * (sign * change / 2 / length**2)
                    seeded()
                    values.append(float(compute().detach()))
                ratio = (values[0] - values[1]) / change
                if closest is None or abs(ratio - 1) < abs(closest - 1):
                    closest = ratio
                if abs(ratio - 1) < 0.1:
                    break
    finally:
        for parameter, start in zip(trained, kept, strict=True):
            parameter.data = start
    return closest
