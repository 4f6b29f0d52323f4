"""From gradients to new parameters: clipping, and the update rules."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from limpid.maths.catalogue import register
from limpid.maths.given import given, hold_fields
from limpid.maths.operation import Array, in_latex, require

Arrays = dict[str, Array]
Index = tuple[int, ...]


def global_norm(gradients: Arrays) -> float:
    """√Σ g² over every entry of every gradient; a power of two keeps squares from overflowing or vanishing."""
    largest = max((float(np.abs(gradient).max(initial=0.0)) for gradient in gradients.values()), default=0.0)
    unit = 1.0
    if math.isfinite(largest) and not 1e-150 < largest < 1e150:
        unit = 2.0 ** math.frexp(largest)[1]
        gradients = {name: gradient / unit for name, gradient in gradients.items()}
    return unit * math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients.values()))


REGISTER = 32
"""Bytes that PyTorch adds up side by side on a processor: eight float32 sums, each of an eighth of the squares."""


def norm_rounding(sizes: Sequence[int], itemsize: int) -> float:
    """Relative error of a global norm of gradients of so many entries, in units of u of their format.

    PyTorch takes the norm of every gradient, then the norm of those norms. n squares in `lanes` running sums: n / lanes
    additions in each, as many again as there are lanes to join them, and one rounding of each square. A root halves the
    relative error of what is under it and rounds once.
    """
    lanes = REGISTER // itemsize
    of_one = (max(sizes) / lanes + lanes + 1) / 2 + 1
    return of_one + (len(sizes) + 1) / 2 + 1


@given
def clip(gradients: Arrays, max_grad_norm: float | None) -> tuple[Arrays, float]:
    """Scale all gradients alike so that their global norm is at most `max_grad_norm`; also returns the norm before.

    Source: Pascanu, Mikolov & Bengio 2013, algorithm 1, arXiv:1211.5063. The 1e-6 in the denominator is PyTorch's.
    """
    norm = global_norm(gradients)
    scale = clip_scale(norm, max_grad_norm)
    return ({name: scale * gradient for name, gradient in gradients.items()} if scale < 1 else gradients), norm


def clip_by_value(gradients: Arrays, limit: float) -> Arrays:
    """Bring every entry of every gradient into [-limit, limit]; unlike `clip`, this turns the direction.

    Raises  DomainError for a negative limit
    """
    require(limit >= 0, f"limit is {limit}: it must not be negative")
    return {name: np.clip(gradient, -limit, limit) for name, gradient in gradients.items()}


def clip_scale(norm: float, max_grad_norm: float | None) -> float:
    """What gradients of this global norm are multiplied by.

    Raises  DomainError for a negative limit, which would turn gradients round
    """
    require(max_grad_norm is None or max_grad_norm >= 0, f"max_grad_norm is {max_grad_norm}: it must not be negative")
    return 1.0 if max_grad_norm is None else min(1.0, max_grad_norm / (norm + 1e-6))


@dataclass(frozen=True)
class UpdateInput:
    """What one parameter's update is made from."""

    parameter: Float[Array, "*shape"]  # θ
    gradient: Float[Array, "*shape"]  # g, clipped
    moments: dict[str, Float[Array, "*shape"]]  # what the rule remembers of earlier gradients, by name
    learning_rate: float  # η
    number: int  # t of the update; 1 is the first
    decayed: bool  # whether weight decay applies to this parameter
    smallest: float = 0.0  # normal number of the engine's format: of what lies below it nothing may be left

    def at(self, index: Index) -> UpdateInput:
        """The same for one entry."""
        moments = {kind: np.asarray(moment[index]) for kind, moment in self.moments.items()}
        return replace(
            self,
            parameter=np.asarray(self.parameter[index]),
            gradient=np.asarray(self.gradient[index]),
            moments=moments,
        )


HYPERPARAMETERS = {
    r"\beta_1": "beta1", r"\beta_2": "beta2", r"\beta": "beta", r"\varepsilon": "eps", r"\lambda": "weight_decay",
}  # fmt: skip
"""What the letters of the rules' equations are called in their classes."""


def _letter(symbol: str) -> str:
    """A pattern that finds a letter, and not the same letter with an index."""
    return re.escape(symbol) + r"(?![_a-z])"


@dataclass(frozen=True)
class UpdateRule(ABC):
    """How one parameter moves.

    `terms` is the rule, a line per equation; the new values, their bounds and the text of an entry are read off it.
    """

    weight_decay: float = 0.0

    moments: ClassVar[tuple[str, ...]] = ()
    equations: ClassVar[tuple[str, ...]]
    source: ClassVar[str]

    def __post_init__(self) -> None:
        """Hold hyperparameters against their annotations, as options are held."""
        hold_fields(self)

    def __init_subclass__(cls) -> None:
        if "equations" in vars(cls):
            register(cls.__name__, cls)

    def as_used(self, decayed: bool) -> tuple[str, ...]:
        """The equations of this very rule, LaTeX, then its hyperparameters; `decayed`: λ applies to something."""
        lines: Sequence[str] = self.equations
        if not (decayed and self.weight_decay):
            lines = [line.replace(r"(1 - \eta \lambda)\, \theta", r"\theta") for line in lines]
            lines = [line.replace(r" + \lambda \theta", "") for line in lines]
            lines = [line for line in lines if line not in (r"g \leftarrow g", r"\theta \leftarrow \theta")]
        text = " ".join(lines)
        own = {symbol: getattr(self, name) for symbol, name in HYPERPARAMETERS.items() if hasattr(self, name)}
        named = (f"{symbol} = {in_latex(value)}" for symbol, value in own.items() if re.search(_letter(symbol), text))
        return tuple(filter(None, (*lines, r", \quad ".join(named))))

    @abstractmethod
    def terms(self, x: UpdateInput) -> dict[str, Any]:
        """Every quantity of the update by name: what is formed on the way, the new moments, the new `parameter`."""

    @abstractmethod
    def rounding(self, x: UpdateInput) -> Arrays:
        """Error bounds of the new `parameter` and of each new moment, in units of the engine's u.

        `absolute`, where there is one, bounds what of the parameter's error has another unit.
        """

    @abstractmethod
    def derivation(self, x: UpdateInput, at: Index) -> tuple[str, ...]:
        """The update of the entry `at` written out with its numbers, a line per equation."""

    def apply(self, x: UpdateInput) -> tuple[Array, Arrays]:
        """The new parameter and the new moments.

        Raises  DomainError for an update before the first
        """
        require(x.number >= 1, f"number is {x.number}: updates are counted from 1")
        terms = self.terms(x)
        return terms["parameter"], {kind: terms[kind] for kind in self.moments}

    def decay(self, x: UpdateInput) -> float:
        """λ for matrices, 0 for gains and biases."""
        return self.weight_decay if x.decayed else 0.0


class EntryByEntry(UpdateRule):
    """A rule that moves each entry by its own gradient and moments alone."""

    lines: ClassVar[tuple[str, ...]]
    """The equations as text, a slot for each number: terms by name, the input's fields, the rule's as `rule.NAME`."""

    def derivation(self, x: UpdateInput, at: Index) -> tuple[str, ...]:
        entry = x.at(at)
        before = {f"{kind}_before": float(moment) for kind, moment in entry.moments.items()}
        numbers = {name: float(term) for name, term in self.terms(entry).items()}
        numbers |= {"theta_before": float(entry.parameter), "gradient": float(entry.gradient), "decay": self.decay(x)}
        slots = {**numbers, **before, "rate": x.learning_rate, "t": x.number, "rule": self}
        lines = (line for line in self.lines if self.decay(x) or "{decay:" not in line)
        return tuple(line.format(**slots) for line in lines)


@dataclass(frozen=True)
class SGD(EntryByEntry):
    """Step against the gradient.

    Source: Robbins & Monro 1951; weight decay as a gradient of ½λθ².
    """

    equations = (r"g \leftarrow g + \lambda \theta", r"\theta \leftarrow \theta - \eta g")
    source = "Robbins & Monro 1951, eq. 8, doi:10.1214/aoms/1177729586"
    lines = (
        "g = {gradient:.8g} + {decay:g} · {theta_before:.8g} = {g:.8g}",
        "θ = {theta_before:.8g} - {rate:g} · {g:.8g} = {parameter:.8g}",
    )

    def terms(self, x: UpdateInput) -> dict[str, Any]:
        g = x.gradient + self.decay(x) * x.parameter
        return {"g": g, "parameter": x.parameter - x.learning_rate * g}

    def rounding(self, x: UpdateInput) -> Arrays:
        step = np.abs(x.gradient) + 3 * self.decay(x) * np.abs(x.parameter)
        return {"parameter": np.abs(self.terms(x)["parameter"]) + 4 * x.learning_rate * step}


@dataclass(frozen=True)
class Momentum(EntryByEntry):
    """Step against a running mean of the gradients.

    Departs from PyTorch's default by weighting every gradient with 1 - β. PyTorch's dampening = β does so from its
    second step on; its first takes the whole gradient.
    """

    beta1: float = 0.9

    moments = ("m",)
    equations = (
        r"g \leftarrow g + \lambda \theta",
        r"m \leftarrow \beta_1 m + (1 - \beta_1) g",
        r"\theta \leftarrow \theta - \eta m",
    )
    source = "Polyak 1964, eq. 9, doi:10.1016/0041-5553(64)90137-5"
    lines = (
        "g = {gradient:.8g} + {decay:g} · {theta_before:.8g} = {g:.8g}",
        "m = {rule.beta1:g} · {m_before:.8g} + {beta1_left:.6g} · {g:.8g} = {m:.8g}",
        "θ = {theta_before:.8g} - {rate:g} · {m:.8g} = {parameter:.8g}",
    )

    def terms(self, x: UpdateInput) -> dict[str, Any]:
        g = x.gradient + self.decay(x) * x.parameter
        beta1_left = 1 - self.beta1
        m = self.beta1 * x.moments["m"] + beta1_left * g
        return {"g": g, "beta1_left": beta1_left, "m": m, "parameter": x.parameter - x.learning_rate * m}

    def rounding(self, x: UpdateInput) -> Arrays:
        pull = np.abs(x.gradient) + self.decay(x) * np.abs(x.parameter)
        error = 4 * (self.beta1 * np.abs(x.moments["m"]) + (1 - self.beta1) * 2 * pull)
        return {"parameter": np.abs(self.terms(x)["parameter"]) + 2 * x.learning_rate * error, "m": error}


@dataclass(frozen=True)
class Adam(EntryByEntry):
    """Step against the running mean of the gradients, in units of their running root mean square.

    Weight decay, if any, joins the gradient, so that it is rescaled like one. AdamW is the cure.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decoupled: ClassVar[bool] = False

    moments = ("m", "v")
    equations: ClassVar[tuple[str, ...]] = (
        r"g \leftarrow g + \lambda \theta",
        r"m \leftarrow \beta_1 m + (1 - \beta_1) g",
        r"v \leftarrow \beta_2 v + (1 - \beta_2) g^2",
        r"\hat m = m / (1 - \beta_1^t), \quad \hat v = v / (1 - \beta_2^t)",
        r"\theta \leftarrow \theta - \eta\, \hat m / (\sqrt{\hat v} + \varepsilon)",
    )
    source: ClassVar[str] = "Kingma & Ba 2015, algorithm 1, arXiv:1412.6980"
    lines: ClassVar[tuple[str, ...]] = (
        "g = {gradient:.8g} + {decay:g} · {theta_before:.8g} = {g:.8g}",
        "m = {rule.beta1:g} · {m_before:.8g} + {beta1_left:.6g} · {g:.8g} = {m:.8g}",
        "v = {rule.beta2:g} · {v_before:.8g} + {beta2_left:.6g} · ({g:.8g})² = {v:.8g}",
        "m̂ = {m:.8g} / (1 - {rule.beta1:g}^{t}) = {m_hat:.8g}",
        "v̂ = {v:.8g} / (1 - {rule.beta2:g}^{t}) = {v_hat:.8g}",
        "effective rate = {rate:g} / (√{v_hat:.8g} + {rule.eps:g}) = {effective:.6g}, "
        "{multiplier:.6g} × the learning rate",
        "step = {effective:.8g} · {m_hat:.8g} = {step:.8g}",
        "θ = {theta:.8g} - {step:.8g} = {parameter:.8g}",
    )

    def terms(self, x: UpdateInput) -> dict[str, Any]:
        decay, beta1_left, beta2_left = self.decay(x), 1 - self.beta1, 1 - self.beta2
        theta = x.parameter * (1 - x.learning_rate * decay) if self.decoupled else x.parameter
        g = x.gradient + decay * x.parameter if decay and not self.decoupled else x.gradient
        m = self.beta1 * x.moments["m"] + beta1_left * g
        v = self.beta2 * x.moments["v"] + beta2_left * g * g
        m_hat = m / (1 - self.beta1**x.number)
        v_hat = v / (1 - self.beta2**x.number)
        multiplier = 1 / (np.sqrt(v_hat) + self.eps)
        effective = x.learning_rate * multiplier
        step = effective * m_hat
        return {
            "theta": theta, "g": g, "beta1_left": beta1_left, "beta2_left": beta2_left, "m": m, "v": v, "m_hat": m_hat,
            "v_hat": v_hat, "multiplier": multiplier, "effective": effective, "step": step, "parameter": theta - step,
        }  # fmt: skip

    def rounding(self, x: UpdateInput) -> Arrays:
        decay, terms = self.decay(x), self.terms(x)
        pulled = 0.0 if self.decoupled else decay * np.abs(x.parameter)
        pull = np.abs(x.gradient) + pulled  # an upper bound of |g|, whose error is at most 3 u of it
        m_error = 4 * (self.beta1 * np.abs(x.moments["m"]) + 2 * (1 - self.beta1) * pull)
        m_error += (1 - self.beta1) * np.abs(x.moments["m"])  # PyTorch's lerp has 1 - β, and forms β from it
        v_error = 5 * (self.beta2 * x.moments["v"] + 2 * (1 - self.beta2) * pull * (pull + pulled))
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(terms["v"] > 0, v_error / terms["v"], 0.0) / 2 + 8  # the root halves it
        scale = np.abs(terms["effective"]) / (1 - self.beta1**x.number)
        moved = scale * (m_error + np.abs(terms["m"]) * np.minimum(relative, 1e6))
        new, before = terms["parameter"], x.parameter
        return {"parameter": np.abs(new) + 3 * np.abs(before - new) + np.abs(before) + moved,
                "m": m_error, "v": v_error, "absolute": self._lost(x, terms)}  # fmt: skip

    def _lost(self, x: UpdateInput, terms: dict[str, Any]) -> Array:
        """How much farther the parameter may move because g² and (1 - β₂) g² lose what lies near 0: √v̂ is less then."""
        left = np.maximum(terms["v_hat"] - 2 * x.smallest / (1 - self.beta2**x.number), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            larger = 1 / (np.sqrt(left) + self.eps) - terms["multiplier"]
            farther = x.learning_rate * np.abs(terms["m_hat"]) * np.maximum(larger, 0.0)
        return np.where(terms["m_hat"] == 0, 0.0, farther)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient: every decayed weight shrinks by the same share."""

    decoupled = True
    equations = (r"\theta \leftarrow (1 - \eta \lambda)\, \theta", *Adam.equations[1:])
    source = "Loshchilov & Hutter 2019, algorithm 2, arXiv:1711.05101"
    lines = ("θ' = {theta_before:.8g} · (1 - {rate:g} · {decay:g}) = {theta:.8g}", *Adam.lines[1:])
