"""Which kernel of the engine did a piece of the step."""

from __future__ import annotations

from limpid.maths.attention import CausalSoftmax, Mix, Scores
from limpid.maths.embedding import Rotary
from limpid.maths.formula import Formula, FormulaOperation
from limpid.maths.linear import Linear
from limpid.maths.loss import LogSoftmax, NegativeLogLikelihood
from limpid.maths.mlp import Gated
from limpid.tracing.kernels.attention import NativeAttention, ShortAttention
from limpid.tracing.kernels.gate import EagerGate, NativeGate
from limpid.tracing.kernels.kernel import Formats, Kernel, OneOperation
from limpid.tracing.kernels.linear_cross_entropy import LinearCrossEntropy, SoftmaxOfLinear, TokenLogProbabilities
from limpid.tracing.kernels.random_rounding import RandomRounding
from limpid.tracing.record import Record
from limpid.tracing.segments import Segment


def kernel_of(record: Record, segment: Segment) -> Kernel:
    """The kernel whose roundings are repeated, where they are known; random rounding where they are not."""
    formats = formats_of(record, segment)
    match [link.operation for link in segment.links]:
        case [Gated() as gate]:
            own = segment.path == "fast" and record.kernels.get("activation") == "native"
            return (NativeGate if own else EagerGate)(gate, formats)
        case [operation]:
            return OneOperation(
                operation, formats, in_parts=not (segment.path == "fast" and isinstance(operation, Rotary))
            )
        case [Scores() as scores, CausalSoftmax() as softmax, Mix()] if record.kernels["attention"] == "short":
            return ShortAttention(scores, softmax, formats)
        case [Scores() as scores, CausalSoftmax() as softmax, Mix()] if record.kernels["attention"] == "native":
            return NativeAttention(scores, softmax, formats)
        case [Linear(), LogSoftmax(), NegativeLogLikelihood()]:
            return LinearCrossEntropy(formats, record.labels, record.kernels["logits_rows"])
        case [Linear(), LogSoftmax(), FormulaOperation(formula=Formula(name="token_log_probabilities"))]:
            return TokenLogProbabilities(formats, SoftmaxOfLinear(formats, record.kernels["logits_rows"]))
        case [
            Linear(),
            FormulaOperation(formula=Formula(name="tempered")) as tempered,
            LogSoftmax(),
            FormulaOperation(formula=Formula(name="token_log_probabilities")),
        ]:
            rows, temperature = record.kernels["logits_rows"], dict(tempered.options)["temperature"]
            return TokenLogProbabilities(formats, SoftmaxOfLinear(formats, rows, temperature))
    return RandomRounding.of(record, segment, formats)


def formats_of(record: Record, segment: Segment) -> Formats:
    """The formats of a piece's arrays; a matrix product hands gradients back in the compute format."""
    into_products = {name for link in segment.links if isinstance(link.operation, Linear) for name in link.inputs}
    gradients = tuple(
        record.compute_format if name in into_products else record.format(record.place(name, segment.path))
        for name in segment.inputs
    )
    result = record.format(record.place(segment.name, segment.path))
    return Formats(record.summed_format, record.compute_format, result, gradients, record.entering)
