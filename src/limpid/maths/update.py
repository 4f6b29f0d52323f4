"""From gradients to new parameters: clipping, and the update rules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from limpid.config import UpdateConfig
from limpid.errors import ConfigError
from limpid.maths.catalogue import register
from limpid.maths.operation import Array
from limpid.quantities import Parameter

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


def clip(gradients: Arrays, max_grad_norm: float | None) -> tuple[Arrays, float]:
    """Scale all gradients alike so that their global norm is at most `max_grad_norm`; also returns the norm before.

    Source: Pascanu, Mikolov & Bengio 2013, algorithm 1, arXiv:1211.5063. The 1e-6 in the denominator is PyTorch's.
    """
    norm = global_norm(gradients)
    scale = clip_scale(norm, max_grad_norm)
    return ({name: scale * gradient for name, gradient in gradients.items()} if scale < 1 else gradients), norm


def clip_scale(norm: float, max_grad_norm: float | None) -> float:
    """What gradients of this global norm are multiplied by."""
    return 1.0 if max_grad_norm is None else min(1.0, max_grad_norm / (norm + 1e-6))


@dataclass(frozen=True)
class UpdateRule(ABC):
    """How one parameter moves: the arrays `moments` are what it remembers of earlier gradients.

    `apply` and `rounding` take the same things: parameter θ, (clipped) gradient g, moments, learning rate η, the number
    t of the update (1 is the first), and whether weight decay applies to this parameter.
    """

    weight_decay: float = 0.0

    moments: ClassVar[tuple[str, ...]] = ()
    equations: ClassVar[tuple[str, ...]]
    source: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "equations" in vars(cls):
            register(cls.__name__, cls)

    @abstractmethod
    def apply(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> tuple[Array, Arrays]:
        """The new parameter and the new moments."""

    @abstractmethod
    def rounding(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> Arrays:
        """Error bounds of the new `parameter` and of each new moment, in units of the engine's u.

        `absolute`, where there is one, bounds what of the parameter's error has another unit.
        """

    def decay(self, decayed: bool) -> float:
        """λ for matrices, 0 for gains and biases."""
        return self.weight_decay if decayed else 0.0

    @abstractmethod
    def derivation(
        self,
        parameter: Array,
        gradient: Array,
        moments: Arrays,
        learning_rate: float,
        number: int,
        decayed: bool,
        at: Index,
    ) -> tuple[str, ...]:
        """The update of the entry `at` written out with its numbers, a line per equation."""


class EntryByEntry(UpdateRule):
    """A rule that moves each entry by its own gradient and memory alone."""

    def derivation(
        self,
        parameter: Array,
        gradient: Array,
        moments: Arrays,
        learning_rate: float,
        number: int,
        decayed: bool,
        at: Index,
    ) -> tuple[str, ...]:
        remembered = {kind: float(moment[at]) for kind, moment in moments.items()}
        return self.written(float(parameter[at]), float(gradient[at]), remembered, learning_rate, number, decayed)

    @abstractmethod
    def written(
        self,
        parameter: float,
        gradient: float,
        moments: dict[str, float],
        learning_rate: float,
        number: int,
        decayed: bool,
    ) -> tuple[str, ...]:
        """One entry's update written out with its numbers, a line per equation."""


@dataclass(frozen=True)
class SGD(EntryByEntry):
    """Step against the gradient.

    Source: Robbins & Monro 1951; weight decay as a gradient of ½λθ².
    """

    equations = (r"g \leftarrow g + \lambda \theta", r"\theta \leftarrow \theta - \eta g")
    source = "Robbins & Monro 1951, eq. 8, doi:10.1214/aoms/1177729586"

    def apply(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> tuple[Array, Arrays]:
        return parameter - learning_rate * (gradient + self.decay(decayed) * parameter), {}

    def rounding(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> Arrays:
        step = np.abs(gradient) + 3 * self.decay(decayed) * np.abs(parameter)
        new, _ = self.apply(parameter, gradient, moments, learning_rate, number, decayed)
        return {"parameter": np.abs(new) + 4 * learning_rate * step}

    def written(
        self,
        parameter: float,
        gradient: float,
        moments: dict[str, float],
        learning_rate: float,
        number: int,
        decayed: bool,
    ) -> tuple[str, ...]:
        decay = self.decay(decayed)
        g = gradient + decay * parameter
        return (
            f"g = {gradient:.8g} + {decay:g} · {parameter:.8g} = {g:.8g}",
            f"θ = {parameter:.8g} - {learning_rate:g} · {g:.8g} = {parameter - learning_rate * g:.8g}",
        )


@dataclass(frozen=True)
class Momentum(EntryByEntry):
    """Step against a running mean of the gradients.

    Departs from PyTorch's default by weighting the new gradient with 1 - β (PyTorch: dampening = β).
    """

    beta1: float = 0.9

    moments = ("m",)
    equations = (
        r"g \leftarrow g + \lambda \theta",
        r"m \leftarrow \beta m + (1 - \beta) g",
        r"\theta \leftarrow \theta - \eta m",
    )
    source = "Polyak 1964, eq. 9, doi:10.1016/0041-5553(64)90137-5"

    def apply(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> tuple[Array, Arrays]:
        m = self.beta1 * moments["m"] + (1 - self.beta1) * (gradient + self.decay(decayed) * parameter)
        return parameter - learning_rate * m, {"m": m}

    def rounding(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> Arrays:
        new, _ = self.apply(parameter, gradient, moments, learning_rate, number, decayed)
        pull = np.abs(gradient) + self.decay(decayed) * np.abs(parameter)
        error = 4 * (self.beta1 * np.abs(moments["m"]) + (1 - self.beta1) * 2 * pull)
        return {"parameter": np.abs(new) + 2 * learning_rate * error, "m": error}

    def written(
        self,
        parameter: float,
        gradient: float,
        moments: dict[str, float],
        learning_rate: float,
        number: int,
        decayed: bool,
    ) -> tuple[str, ...]:
        decay, beta = self.decay(decayed), self.beta1
        g = gradient + decay * parameter
        m = beta * moments["m"] + (1 - beta) * g
        return (
            f"g = {gradient:.8g} + {decay:g} · {parameter:.8g} = {g:.8g}",
            f"m = {beta:g} · {moments['m']:.8g} + {1 - beta:.6g} · {g:.8g} = {m:.8g}",
            f"θ = {parameter:.8g} - {learning_rate:g} · {m:.8g} = {parameter - learning_rate * m:.8g}",
        )


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

    def apply(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> tuple[Array, Arrays]:
        decay = self.decay(decayed)
        if self.decoupled:
            parameter = parameter * (1 - learning_rate * decay)
        elif decay:
            gradient = gradient + decay * parameter
        m = self.beta1 * moments["m"] + (1 - self.beta1) * gradient
        v = self.beta2 * moments["v"] + (1 - self.beta2) * gradient * gradient
        m_hat = m / (1 - self.beta1**number)
        v_hat = v / (1 - self.beta2**number)
        return parameter - learning_rate * m_hat / (np.sqrt(v_hat) + self.eps), {"m": m, "v": v}

    def rounding(
        self, parameter: Array, gradient: Array, moments: Arrays, learning_rate: float, number: int, decayed: bool
    ) -> Arrays:
        decay = self.decay(decayed)
        new, after = self.apply(parameter, gradient, moments, learning_rate, number, decayed)
        pulled = 0.0 if self.decoupled else decay * np.abs(parameter)
        pull = np.abs(gradient) + pulled  # an upper bound of |g|, whose error is at most 3 u of it
        m_error = 4 * (self.beta1 * np.abs(moments["m"]) + 2 * (1 - self.beta1) * pull)
        v_error = 5 * (self.beta2 * moments["v"] + 2 * (1 - self.beta2) * pull * (pull + pulled))
        root = np.sqrt(after["v"] / (1 - self.beta2**number))
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(after["v"] > 0, v_error / after["v"], 0.0) / 2 + 8  # the root halves it
        step = learning_rate / (1 - self.beta1**number) / (root + self.eps)
        moved = step * (m_error + np.abs(after["m"]) * np.minimum(relative, 1e6))
        return {"parameter": np.abs(new) + 3 * np.abs(parameter - new) + np.abs(parameter) + moved,
                "m": m_error, "v": v_error}  # fmt: skip

    def written(
        self,
        parameter: float,
        gradient: float,
        moments: dict[str, float],
        learning_rate: float,
        number: int,
        decayed: bool,
    ) -> tuple[str, ...]:
        decay, lines = self.decay(decayed), []
        g, theta = gradient, parameter
        if self.decoupled:
            theta = parameter * (1 - learning_rate * decay)
            lines.append(f"θ' = {parameter:.8g} · (1 - {learning_rate:g} · {decay:g}) = {theta:.8g}")
        else:
            g = gradient + decay * parameter
            lines.append(f"g = {gradient:.8g} + {decay:g} · {parameter:.8g} = {g:.8g}")
        m = self.beta1 * moments["m"] + (1 - self.beta1) * g
        v = self.beta2 * moments["v"] + (1 - self.beta2) * g * g
        m_hat, v_hat = m / (1 - self.beta1**number), v / (1 - self.beta2**number)
        effective = learning_rate / (math.sqrt(v_hat) + self.eps)
        step = effective * m_hat
        return (
            *lines,
            f"m = {self.beta1:g} · {moments['m']:.8g} + {1 - self.beta1:.6g} · {g:.8g} = {m:.8g}",
            f"v = {self.beta2:g} · {moments['v']:.8g} + {1 - self.beta2:.6g} · ({g:.8g})² = {v:.8g}",
            f"m̂ = {m:.8g} / (1 - {self.beta1:g}^{number}) = {m_hat:.8g}",
            f"v̂ = {v:.8g} / (1 - {self.beta2:g}^{number}) = {v_hat:.8g}",
            f"effective rate = {learning_rate:g} / (√{v_hat:.8g} + {self.eps:g}) = {effective:.6g}, "
            f"{effective / learning_rate if learning_rate else 0.0:.6g} × the learning rate",
            f"step = {effective:.8g} · {m_hat:.8g} = {step:.8g}",
            f"θ = {theta:.8g} - {step:.8g} = {theta - step:.8g}",
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient: every decayed weight shrinks by the same share."""

    decoupled = True
    equations = (r"\theta \leftarrow (1 - \eta \lambda)\, \theta", *Adam.equations[1:])
    source = "Loshchilov & Hutter 2019, algorithm 2, arXiv:1711.05101"


def rule(update: UpdateConfig, parameter: Parameter) -> UpdateRule:
    """The update rule that a configuration asks for; muon is for matrices inside blocks, AdamW then moves the rest."""
    from limpid.maths.muon import Muon  # which is built on this file

    match update.optimizer:
        case "sgd":
            return SGD(update.weight_decay)
        case "momentum":
            return Momentum(update.weight_decay, update.beta1)
        case "adam":
            return Adam(update.weight_decay, update.beta1, update.beta2, update.eps)
        case "muon" if parameter.hidden:
            return Muon(update.weight_decay)
        case "adamw" | "muon":
            return AdamW(update.weight_decay, update.beta1, update.beta2, update.eps)
    raise ConfigError(f"optimizer is {update.optimizer!r}: choose one of adamw, muon, adam, momentum, sgd")
