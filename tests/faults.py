"""Operations broken on purpose, each by one plausible slip: what every check of an operation must notice."""

from dataclasses import fields
from typing import Any

import numpy as np

from limpid import maths
from limpid.maths import Operation

Array = np.ndarray


def broken(fault: type[Operation], operation: Operation) -> Operation:
    """The same operation, same hyperparameters, with the fault."""
    return fault(**{field.name: getattr(operation, field.name) for field in fields(operation)})


class MeanOverOneLess(maths.RMSNorm):
    def forward(self, x: Array, weight: Array) -> Any:
        _, saved = super().forward(x, weight)
        r = np.sqrt((x * x).sum(-1, keepdims=True) / max(1, x.shape[-1] - 1) + self.eps)
        return weight * x / r, saved


class RootMeanSquareDoesNotMove(maths.RMSNorm):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return saved.weight * y_bar / saved.r, super().backward(y_bar, saved)[1]


class UnbiasedVariance(maths.LayerNorm):
    def forward(self, x: Array, weight: Array, bias: Array) -> Any:
        _, saved = super().forward(x, weight, bias)
        sigma = np.sqrt(x.var(-1, ddof=1, keepdims=True) + self.eps)
        return weight * (x - x.mean(-1, keepdims=True)) / sigma + bias, saved


class MeanDoesNotMove(maths.LayerNorm):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        x_bar, weight_bar, bias_bar = super().backward(y_bar, saved)
        return x_bar + (saved.weight * y_bar).mean(-1, keepdims=True) / saved.sigma, weight_bar, bias_bar


class BiasForgotten(maths.Linear):
    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Any:
        y, saved = super().forward(x, weight)
        return y, saved._replace(biased=bias is not None)


class WeightGradientOfFirstVectorOnly(maths.Linear):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        x_bar, _, *rest = super().backward(y_bar, saved)
        return x_bar, np.outer(y_bar.reshape(len(saved.rows), -1)[0], saved.rows[0]), *rest


class HeadsBesideFeatures(maths.Linear):
    """Splits into (d_head, head) and turns that, where (head, d_head) belongs."""

    def forward(self, x: Array, weight: Array, *bias: Array) -> Any:
        y, saved = super().forward(x, weight, *bias)
        if self.heads_out is not None:
            y = y.reshape(*y.shape[:-2], y.shape[-1], y.shape[-2]).swapaxes(-1, -2)
        return y, saved


class Subtracted(maths.Add):
    def forward(self, x: Array, y: Array) -> Any:
        return x - y, super().forward(x, y)[1]


class MeanOverCopies(maths.Add):
    def backward(self, z_bar: Array, saved: Any) -> Any:
        return tuple(bar * bar.size / z_bar.size for bar in super().backward(z_bar, saved))


class ScaledTwice(maths.AddScaled):
    def forward(self, x: Array, y: Array) -> Any:
        return super().forward(x, self.scale * y)


class GradientUnscaled(maths.AddScaled):
    def backward(self, z_bar: Array, saved: Any) -> Any:
        return z_bar, z_bar


class ColumnLength(maths.RowLength):
    """Of columns, where rows belong."""

    def forward(self, weight: Array, down: Array, up: Array) -> Any:
        length, saved = super().forward(weight, down, up)
        columns = np.sqrt(np.square(saved.changed).sum(0))
        return np.resize(columns, length.shape), saved


class MagnitudeSquared(maths.Magnitude):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        z_bar, m_bar, *rest = super().backward(y_bar, saved)
        return z_bar, m_bar / saved.length.ravel(), *rest


class LastTokenWins(maths.Embedding):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        table_bar = np.zeros((saved.rows, y_bar.shape[-1]))
        table_bar[saved.tokens] = y_bar
        return None, table_bar


class NextRow(maths.Embedding):
    def forward(self, tokens: Array, table: Array) -> Any:
        return table[(tokens + 1) % len(table)], super().forward(tokens, table)[1]


class PositionsFromOne(maths.LearnedPositions):
    def forward(self, table: Array) -> Any:
        return table[1 : self.length + 1], super().forward(table)[1]


class LastRowsMove(maths.LearnedPositions):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return (super().backward(y_bar, saved)[0][::-1].copy(),)


class SinesThenCosines(maths.SinusoidalPositions):
    def forward(self) -> Any:
        y, saved = super().forward()
        return np.concatenate((y[:, 0::2], y[:, 1::2]), -1), saved


class TurnsTheOtherWay(maths.Rotary):
    def forward(self, x: Array) -> Any:
        _, saved = super().forward(x)
        return super().backward(x, saved)[0], saved


class GradientTurnsTheSameWay(maths.Rotary):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return super().backward(y_bar, saved._replace(sin=-saved.sin))


class TurnsFromPositionOne(maths.Rotary):
    def forward(self, x: Array) -> Any:
        later = super().forward(np.concatenate((x[:, :1], x), 1))[0]
        return later[:, 1:], super().forward(x)[1]


class NotStretched(maths.Rotary):
    def frequencies(self, d_head: int) -> Array:
        return self.base ** (-np.arange(0, d_head, 2) / d_head)


class Unscaled(maths.Scores):
    def forward(self, query: Array, key: Array) -> Any:
        scores, saved = super().forward(query, key)
        return scores / self.scale, saved


class NextHeadsKey(maths.Scores):
    def forward(self, query: Array, key: Array) -> Any:
        return super().forward(query, np.roll(key, 1, axis=2))


class KeyGradientUnscaled(maths.Scores):
    def backward(self, scores_bar: Array, saved: Any) -> Any:
        query_bar, key_bar = super().backward(scores_bar, saved)
        return query_bar, key_bar / self.scale


class SeesOneAhead(maths.CausalSoftmax):
    def visible(self, queries: int, keys: int) -> Array:
        seen = super().visible(queries, keys)
        return seen | np.roll(seen, 1, axis=-1)


class HiddenKeysCount(maths.CausalSoftmax):
    """Hidden keys get weight 0 only after the sum."""

    def forward(self, scores: Array) -> Any:
        weights, saved = super().forward(scores)
        largest = scores.max(-1, keepdims=True)
        whole = np.exp(scores - largest)
        return np.where(weights > 0, whole / whole.sum(-1, keepdims=True), 0.0), saved


class RowsMayGrow(maths.CausalSoftmax):
    def backward(self, weights_bar: Array, saved: Any) -> Any:
        return (weights_bar * saved.weights * (1 - saved.weights),)


class NextHeadsValue(maths.Mix):
    def forward(self, weights: Array, value: Array) -> Any:
        return super().forward(weights, np.roll(value, 1, axis=2))


class ValueGradientOfFirstHeadOnly(maths.Mix):
    def backward(self, mixed_bar: Array, saved: Any) -> Any:
        first = np.arange(mixed_bar.shape[2]) % (mixed_bar.shape[2] // saved.value.shape[1]) == 0
        return super().backward(mixed_bar, saved)[0], super().backward(mixed_bar * first[:, None], saved)[1]


class SlopeAtNegatives(maths.ReLU):
    def slope(self, x: Array) -> Array:
        return np.where(x > 0, 1.0, 0.1)


class SlopeWithoutTwo(maths.SquaredReLU):
    def slope(self, x: Array) -> Array:
        return np.maximum(x, 0.0)


class SlopeIsLogistic(maths.SiLU):
    def slope(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))


class ByTanh(maths.GELU):
    def value(self, x: Array) -> Array:
        return maths.GELUTanh().value(x)


class SlopeIsShare(maths.GELU):
    def slope(self, x: Array) -> Array:
        return self._share(x)


class Exact(maths.GELUTanh):
    def value(self, x: Array) -> Array:
        return maths.GELU().value(x)


class InnerSlopeWithoutThree(maths.GELUTanh):
    @staticmethod
    def _inner_slope(x: Array) -> Array:
        return np.sqrt(2 / np.pi) * (1 + 0.044715 * x * x)


class Swapped(maths.Gated):
    def forward(self, gate: Array, up: Array) -> Any:
        return self.activation.value(up) * gate, super().forward(gate, up)[1]


class GateGradientWithoutUp(maths.Gated):
    def backward(self, hidden_bar: Array, saved: Any) -> Any:
        _, up_bar = super().backward(hidden_bar, saved)
        return hidden_bar * self.activation.slope(saved.gate), up_bar


class SlopeIsOne(maths.Sigmoid):
    def slope(self, x: Array) -> Array:
        return self.value(x)


class SlopeWithoutSquare(maths.Tanh):
    def slope(self, x: Array) -> Array:
        return 1 - np.tanh(x)


class RunningVarianceOfBatch(maths.BatchNorm):
    """Counts the variance over n - 1, as running statistics do, where the batch itself is divided by n."""

    def forward(self, x: Array, weight: Array, bias: Array, *running: Array) -> Any:
        y, saved = super().forward(x, weight, bias, *running)
        return (y if running else (y - bias) * np.sqrt((len(x) - 1) / len(x)) + bias), saved


class BatchDoesNotMove(maths.BatchNorm):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return super().backward(y_bar, saved._replace(of_batch=False))[: 3 if saved.of_batch else 5]


class NotEnlarged(maths.Dropout):
    def forward(self, x: Array, kept: Array) -> Any:
        return x * kept, kept


class DroppedLearnToo(maths.Dropout):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return y_bar / (1 - self.probability), None


class BaseTwo(maths.LogSoftmax):
    def forward(self, logits: Array) -> Any:
        y, saved = super().forward(logits)
        return y / np.log(2), saved


class OthersDoNotMove(maths.LogSoftmax):
    def backward(self, y_bar: Array, saved: Any) -> Any:
        return (y_bar,)


class OverAllPositions(maths.NegativeLogLikelihood):
    def forward(self, log_probabilities: Array, targets: Array) -> Any:
        loss, saved = super().forward(log_probabilities, targets)
        return loss * saved.labels / targets.size, saved


class UnlabelledLearnToo(maths.NegativeLogLikelihood):
    def backward(self, loss_bar: Array, saved: Any) -> Any:
        targets = np.where(saved.targets == self.ignore_index, 0, saved.targets)
        return super().backward(loss_bar, saved._replace(targets=targets))


FAULTS: tuple[type[Operation], ...] = tuple(
    fault for kind in maths.catalogue(Operation) for fault in kind.__subclasses__() if fault.__module__ == __name__
)
