"""Inputs of a scale that no layer was made for, and models that are one linear map of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam

FAMILY = "inputs"

INPUT_SCALE = Rule(
    "input-scale",
    FAMILY,
    detects="Pictures far from the scale that layers are initialised for: divided twice, or not at all.",
    equation=r"\mathrm{Var}(w x) = \mathrm{Var}(w)\, n\, \mathrm{E}[x^2],\; \mathrm{E}[x^2] \approx 1",
    source="He et al. 2015, eq. 6, arXiv:1502.01852",
    threshold="pictures (row, channel, height, width) whose root mean square is below {small:g} or above {large:g}, "
    "where no "
    "norm comes first",
    thresholds={
        "small": Threshold(0.01, "numbers between 0 and 1, divided by 255 once more, are below 0.004"),
        "large": Threshold(30, "bytes between 0 and 255 are above 60"),
    },
    cost="one sum over a batch, before the first step",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.MODULES),
    cause="pictures that are divided by 255 twice, or not at all",
    fix="x.float() / 255 once, then subtract the mean and divide by the deviation that the weights were trained with",
    meant="nets for raw bytes (VGG of Caffe), or pictures in physical units",
    refuted_by="a root mean square near 1",
    explains=("loss-plateau", "nothing-learned", "logits-drift"),
)

AXES_SCRAMBLED = Rule(
    "axes-scrambled-by-view",
    FAMILY,
    detects="Inputs whose first two axes were exchanged by view or reshape, which moves no number.",
    equation=r"x'_{t,b} = x_{(t B + b) \div T,\, (t B + b) \bmod T} \neq x_{b,t}",
    source="definition; documentation of torch.Tensor.view and transpose",
    threshold="exact: an input (A, B, …) that is a view, in the same order of memory, of a tensor (B, A, …), A other "
    "than B",
    cost="none: the tensor knows what it is a view of",
    needs=(Probe.BATCH,),
    cause="view or reshape where transpose is meant: rows are pieced together from several sequences",
    fix="x.transpose(0, 1), or batch_first=True",
    refuted_by="a transposed tensor, whose strides are exchanged, too",
    explains=("loss-plateau", "batch-leaks", "nothing-learned"),
)

ONE_LINEAR_MAP = Rule(
    "one-linear-map",
    FAMILY,
    detects="Several layers that are one matrix together: no activation stands between them.",
    equation=r"f(x + y - z) = f(x) + f(y) - f(z) \text{ for all } x, y, z",
    source="definition of an affine map",
    threshold="exact: the equation holds to {rounding:g} of the outputs' spread over rows, with {layers:g} matrices "
    "or more, "
    "none of them narrower than both its model's ends",
    thresholds={
        "rounding": Threshold(1e-4, "sums of float32 in another order differ by 1e-6"),
        "layers": Threshold(2, "a single matrix is linear regression"),
    },
    cost="two forward passes of six rows in evaluation mode, before the first step",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.MODULES),
    cause="no activation between the layers",
    fix="a nonlinearity (ReLU, GELU, tanh) after every layer but the last",
    meant="deep linear nets on purpose: theory, reparametrisation, probes",
    refuted_by="three inputs for which the equation does not hold",
    explains=("loss-plateau", "nothing-learned"),
)


def _given(exam: Exam, axes: int) -> Tensor | None:
    """The first tensor of numbers that the model is given, where it has so many axes."""
    import torch

    call = exam.usual_call
    values = [] if call is None else [v for v in [*call.args, *call.kwargs.values()] if isinstance(v, torch.Tensor)]
    first = values[0] if values else None
    return first if first is not None and first.ndim == axes and first.is_floating_point() and first.numel() else None


@before_first_step(INPUT_SCALE)
def scale_of_pictures(exam: Exam) -> Iterator[Finding]:
    pictures, rule = _given(exam, 4), INPUT_SCALE
    if pictures is None or exam.flow is None or exam.flow.first_is_norm:
        return
    size, largest = float(pictures.detach().float().square().mean().sqrt()), float(pictures.detach().max())
    if size == 0 or rule["small"] <= size <= rule["large"]:
        return
    small = size < rule["small"]
    yield rule.finding(
        severity="warning",
        where="inputs",
        says=f"the pictures have a root mean square of {size:.2g} (up to {largest:.3g}), where layers are made for "
        f"inputs near "
        f"1: {'they all look alike to the first layer' if small else 'activations begin that many times too large'}.",
        cause="pictures in 0 … 1 that are divided by 255 once more"
        if small
        else "bytes of 0 … 255 that are not normalised, as the pictures that weights are trained with are",
        sure=0.85,
        evidence={"root_mean_square": size, "largest": largest},
    )


@before_first_step(AXES_SCRAMBLED)
def viewed_otherwise(exam: Exam) -> Iterator[Finding]:
    import torch

    call = exam.call or exam.usual_call  # what is detached is a view of nothing
    for value in [] if call is None else [*call.args, *call.kwargs.values()]:
        base = value._base if isinstance(value, torch.Tensor) and value.ndim >= 2 else None
        if base is None or base.ndim != value.ndim or not value.is_contiguous() or not base.is_contiguous():
            continue
        a, b = value.shape[:2]
        if a != b and base.shape[:2] == (b, a) and base.shape[2:] == value.shape[2:] and a > 1 < b:
            yield AXES_SCRAMBLED.finding(
                severity="fault",
                where="inputs",
                says=f"an input of shape {tuple(value.shape)} is a view of a tensor {tuple(base.shape)} whose numbers "
                f"lie in the same "
                "order: its axes were exchanged by view or reshape, not transposed, so that each sequence is pieced "
                "together "
                "from several rows.",
                evidence={"shape": list(value.shape), "base": list(base.shape)},
            )


@before_first_step(ONE_LINEAR_MAP)
def nothing_between(exam: Exam) -> Iterator[Finding]:
    from torch import nn

    rule, rows = ONE_LINEAR_MAP, _given(exam, 2)
    if rows is None or exam.flow is None:
        return
    modules = dict(exam.model.named_modules())
    chain = [(name, modules[name]) for name in exam.flow.called if isinstance(modules.get(name), nn.Linear)]
    chain = [(name, module) for name, module in modules.items() if (name, module) in chain]
    if len(chain) < rule["layers"]:
        return
    ends = min(chain[0][1].in_features, chain[-1][1].out_features)
    narrow = any(module.out_features < ends for _, module in chain[:-1])
    bend = None if narrow else exam.row_probe.bend
    if bend is not None and bend < rule["rounding"]:
        yield rule.finding(
            severity="warning",
            where=chain[0][0],
            says=f"{len(chain)} linear layers ({', '.join(name for name, _ in chain[:4])}) with no activation between "
            f"them: f(x + "
            f"y - z) is f(x) + f(y) - f(z) to {bend:.0e}, so that together they are one matrix.",
            evidence={"layers": len(chain), "bend": bend},
        )
