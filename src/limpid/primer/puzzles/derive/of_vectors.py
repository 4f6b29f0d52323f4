"""Operations on one vector, to be derived: softmax and its like, norms, activations, lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid.maths.activation import gelu, sigmoid, silu, tanh
from limpid.maths.foundations import cosine_similarity, dot, norm
from limpid.maths.foundations.normal import normal_density
from limpid.maths.foundations.probability import log_sum_exp, softmax
from limpid.maths.linear import Add
from limpid.maths.loss import LogSoftmax
from limpid.maths.mlp import Gated
from limpid.maths.norm import LayerNorm, RMSNorm
from limpid.maths.operation import Array
from limpid.primer.puzzles.derive.case import Case, Pass, Slip, Values, formula, operation

RMS, LAYER, GATED, ADD = RMSNorm(), LayerNorm(), Gated(), Add()


def vectors(*names: str) -> Callable[[np.random.Generator], dict[str, Array]]:
    """Draws vectors of one length, 3 to 5."""

    def draw(rng: np.random.Generator) -> dict[str, Array]:
        length = int(rng.integers(3, 6))
        return {name: rng.normal(size=length) * (1.5 if name in "xza" else 1.0) for name in names}

    return draw


def with_number(name: str, *names: str, signed: bool = True) -> Callable[[np.random.Generator], dict[str, Any]]:
    """The same, and a number beside them: a temperature, or the gradient of a number, never near 0."""

    def draw(rng: np.random.Generator) -> dict[str, Any]:
        return {
            **vectors(*names)(rng),
            name: np.round(rng.uniform(0.5, 3.0), 1) * (rng.choice([-1, 1]) if signed else 1),
        }

    return draw


def _scaled_dot() -> Pass:
    plain = formula(dot, "q", "k")

    def backward(of: Values) -> dict[str, Array]:
        return {name: bar / np.sqrt(len(of["q"])) for name, bar in plain.backward(of).items()}

    return Pass(lambda of: plain.forward(of) / np.sqrt(len(of["q"])), backward)


def _with_residual() -> Pass:
    """x + tanh(x): the sum and the activation, one after the other."""

    def backward(of: Values) -> dict[str, Array]:
        y, saved = tanh.forward(of["x"])
        through, into = ADD.backward(of["g"], ADD.forward(of["x"], y)[1])
        return {"x": through + tanh.backward(into, saved)[0]}

    return Pass(lambda of: ADD.forward(of["x"], tanh.forward(of["x"])[0])[0], backward)


def _rms(of: Values) -> dict[str, Any]:
    _, saved = RMS.forward(of["x"], of["w"])
    return {"r": saved.r[0], "h": saved.x_hat, "n": len(of["x"])}


def _layer(of: Values) -> dict[str, Any]:
    _, saved = LAYER.forward(of["x"], of["w"], of["b"])
    return {"s": saved.sigma[0], "h": saved.x_hat, "n": len(of["x"])}


def _normal(of: Values) -> dict[str, Any]:
    x = of["x"]
    return {"c": gelu.value(x) / x, "d": normal_density.function(x)}


CASES = (
    Case(
        "softmax", "p = softmax(z), so that p_i = exp(z_i) / sum(exp(z))", "p", "z", vectors("z", "g"),
        formula(softmax, "z"), lambda of: {"p": softmax.function(of["z"]), "n": len(of["z"])},
        "p * (g - sum(g * p))",
        (
            Slip("no-sum", "g * p", "Every probability moves with every score: the denominator holds them all."),
            Slip("diagonal", "g * p * (1 - p)", "That is how p_i moves with its own z_i; there are the others."),
            Slip("sum-without-p", "p * (g - sum(g))", "The sum over outcomes is weighted, for ∂p_j/∂z_i holds p_j."),
            Slip("mean-for-sum", "p * (g - mean(g * p))", "p_j weighs already: a mean divides by n once more."),
            Slip("loss-instead", "p - g", "That is for the loss −ln p of a target, and here any loss may follow."),
            Slip("outer-factor", "g - sum(g * p)", "In ∂p_j/∂z_i = p_j ([i = j] − p_i), which factor has i alone?"),
        ),
        "[i = j] is 1 where i is j, else 0\n"
        "∂p_j/∂z_i = p_j ([i = j] − p_i)\n∂L/∂z_i = Σ_j g_j p_j ([i = j] − p_i) = p_i (g_i − Σ_j g_j p_j)",
        ("Write ∂p_j/∂z_i by the quotient rule; the denominator depends on every z_i.",
         "Then add over all j: ∂L/∂z_i = Σ_j g_j ∂p_j/∂z_i."),
        opens="blocks.0.attention.weights",
    ),
    Case(
        "softmax with a temperature", "p = softmax(z / T)", "p", "z", with_number("T", "z", "g", signed=False),
        formula(softmax, "z", temperature="T"),
        lambda of: {"p": softmax.function(of["z"], float(of["T"])), "n": len(of["z"])},
        "p * (g - sum(g * p)) / T",
        (
            Slip("no-temperature", "p * (g - sum(g * p))", "What is the slope of z / T by z?"),
            Slip("times-temperature", "p * (g - sum(g * p)) * T", "A high temperature makes p move less, not more."),
            Slip("no-sum", "g * p / T", "Every probability moves with every score: the denominator holds them all."),
            Slip("diagonal", "g * p * (1 - p) / T", "p_i moves with the others' scores too."),
        ),
        "with u = z / T: ∂L/∂u = p (g − Σ_j g_j p_j)\n∂L/∂z = ∂L/∂u · ∂u/∂z = ∂L/∂u / T",
        ("Put u = z / T, and derive by u first.", "Then the chain rule: ∂u/∂z is a number."),
    ),
    Case(
        "log-softmax", "y = ln softmax(z), so that y_i = z_i − ln(sum(exp(z)))", "y", "z", vectors("z", "g"),
        operation(LogSoftmax(), "z"), lambda of: {"p": softmax.function(of["z"]), "n": len(of["z"])},
        "g - p * sum(g)",
        (
            Slip("no-sum", "g - p", "The logarithm of the denominator goes into every y_j, each with its own g_j."),
            Slip("no-denominator", "g + 0 * z", "That is the part of z_i alone; ln(sum(exp(z))) moves as well."),
            Slip("product-for-sum", "g - g * p", "Which g_j reach z_i through the denominator? All of them."),
            Slip("softmax-instead", "p * (g - sum(g * p))", "That is softmax without its logarithm."),
            Slip("sum-without-p", "g - sum(g)", "How does ln(sum(exp(z))) move with z_i?"),
        ),
        "[i = j] is 1 where i is j, else 0\n"
        "∂y_j/∂z_i = [i = j] − p_i\n∂L/∂z_i = Σ_j g_j ([i = j] − p_i) = g_i − p_i Σ_j g_j",
        ("What is the derivative of ln(sum(exp(z))) by z_i?", "Every y_j holds that term: add over all j."),
        opens="log_probabilities",
    ),
    Case(
        "log of a sum of exponentials", "y = ln(sum(exp(z))), a number", "y", "z", with_number("g", "z"),
        formula(log_sum_exp, "z"), lambda of: {"y": log_sum_exp.function(of["z"])},
        "g * exp(z - y)",
        (
            Slip("no-quotient", "g * exp(z)", "The logarithm's slope is 1 over what stands in it."),
            Slip("logarithm-alone", "g / sum(exp(z)) + 0 * z", "And how does sum(exp(z)) move with z_i?"),
            Slip("no-logarithm", "g * exp(z) / y", "1 over what stands in the logarithm, not over the logarithm."),
        ),
        "∂y/∂z_i = exp(z_i) / Σ_j exp(z_j) = exp(z_i − y)\n∂L/∂z_i = g exp(z_i − y)",
        ("The slope of ln u is 1 / u.", "∂ sum(exp(z)) / ∂z_i has one term."),
    ),
    Case(
        "RMSNorm by its input", "y = w * x / r, r = sqrt(mean(x**2) + ε)", "y", "x", vectors("x", "w", "g"),
        operation(RMS, "x", "w"), _rms,
        "(w * g - h * mean(w * g * h)) / r",
        (
            Slip("size-held", "w * g / r", "r moves with every x_i as well."),
            Slip("sum-for-mean", "(w * g - h * sum(w * g * h)) / r", "r is made of the mean: ∂r/∂x_i = h_i / n."),
            Slip("no-gain", "(g - h * mean(g * h)) / r", "What reaches x / r is what comes of y = w · (x / r)."),
            Slip("no-quotient", "w * g - h * mean(w * g * h)", "Both parts are divided by r once."),
            Slip("not-normalised", "(w * g - x * mean(w * g * x)) / r", "x/r² and x/r: count the roots that divide."),
        ),
        "h = x / r, ∂r/∂x_i = h_i / n\n[i = j] is 1 where i is j, else 0\n"
        "∂h_j/∂x_i = ([i = j] − h_j h_i / n) / r\n"
        "∂L/∂x_i = Σ_j w_j g_j ∂h_j/∂x_i = (w_i g_i − h_i mean(w g h)) / r",
        ("How does r move with x_i? r² = mean(x²) + ε.", "h_j = x_j / r has x_i in the numerator if i = j, and in r "
         "always."),
        opens="blocks.0.norm2",
    ),
    Case(
        "LayerNorm by its input", "y = w * h + b, h = (x − mean(x)) / s, s = sqrt(mean((x − mean(x))**2) + ε)", "y",
        "x", vectors("x", "w", "b", "g"), operation(LAYER, "x", "w", "b"), _layer,
        "(w * g - mean(w * g) - h * mean(w * g * h)) / s",
        (
            Slip("both-held", "w * g / s", "The mean and s both move with every x_i."),
            Slip("mean-held", "(w * g - h * mean(w * g * h)) / s", "The mean moves with every x_i: that is RMSNorm's."),
            Slip("deviation-held", "(w * g - mean(w * g)) / s", "s moves with every x_i as well."),
            Slip("no-gain", "(g - mean(g) - h * mean(g * h)) / s", "What reaches h is what comes of y = w h + b."),
            Slip("sum-for-mean", "(w * g - sum(w * g) - h * sum(w * g * h)) / s", "Means are divided by n."),
            Slip("no-quotient", "w * g - mean(w * g) - h * mean(w * g * h)", "All of it is divided by s once."),
        ),
        "with u = w g: ∂μ/∂x_i = 1/n, ∂s/∂x_i = h_i / n\n[i = j] is 1 where i is j, else 0\n"
        "∂h_j/∂x_i = ([i = j] − 1/n − h_j h_i / n) / s\n"
        "∂L/∂x_i = Σ_j u_j ∂h_j/∂x_i = (u_i − mean(u) − h_i mean(u h)) / s",
        ("Three things move with x_i: x_i itself, the mean, and s.", "∂s/∂x_i = h_i / n."),
        opens="blocks.0.norm2",
    ),
    Case(
        "SiLU", "y = x * sigmoid(x)", "y", "x", vectors("x", "g"), operation(silu, "x"),
        lambda of: {"s": sigmoid.value(of["x"])},
        "g * (s + x * s * (1 - s))",
        (
            Slip("first-factor", "g * s", "The second factor moves with x as well."),
            Slip("second-factor", "g * x * s * (1 - s)", "The first factor, x itself, moves as well."),
            Slip("of-the-sigmoid", "g * s * (1 - s)", "That is the slope of the sigmoid alone."),
            Slip("slopes-multiplied", "g * (1 + s * (1 - s))", "In a product, each slope is times the other factor."),
        ),
        "σ' = σ (1 − σ)\n∂y/∂x = σ + x σ (1 − σ)\n∂L/∂x = g (σ + x σ (1 − σ))",
        ("A product of two functions of x: which rule?", "The slope of the sigmoid is s · (1 − s)."),
        opens="blocks.0.mlp.hidden",
    ),
    Case(
        "GELU", "y = x * c, where c is the share of a normal distribution below x, and d its density at x", "y",
        "x", vectors("x", "g"), operation(gelu, "x"), _normal,
        "g * (c + x * d)",
        (
            Slip("first-factor", "g * c", "c moves with x as well."),
            Slip("second-factor", "g * x * d", "The first factor, x itself, moves as well."),
            Slip("density-alone", "g * d", "That is the slope of c alone."),
            Slip("slopes-added", "g * (c + d)", "In a product, each slope is times the other factor."),
        ),
        "∂c/∂x = d\n∂y/∂x = c + x d\n∂L/∂x = g (c + x d)",
        ("A product of two functions of x: which rule?", "The slope of a share below x is the density at x."),
        opens="blocks.0.mlp.hidden",
    ),
    Case(
        "tanh", "y = tanh(x)", "y", "x", vectors("x", "g"), operation(tanh, "x"),
        lambda of: {"y": np.tanh(of["x"])},
        "g * (1 - y**2)",
        (
            Slip("not-squared", "g * (1 - y)", "At y = −1 the curve is flat as well."),
            Slip("of-the-sigmoid", "g * y * (1 - y)", "That is the slope of a sigmoid, not of tanh."),
            Slip("of-the-input", "g * (1 - x**2)", "The square is that of the value, not of x."),
            Slip("not-subtracted", "g * y**2", "At x = 0, where y = 0, the curve is steepest."),
        ),
        "tanh = sinh / cosh, so ∂y/∂x = 1 − tanh²\n∂L/∂x = g (1 − y²)",
        ("Write tanh as sinh over cosh.", "It is steepest where y = 0, and flat where y is 1 or −1."),
    ),
    Case(
        "sigmoid", "y = sigmoid(x) = 1 / (1 + exp(−x))", "y", "x", vectors("x", "g"), operation(sigmoid, "x"),
        lambda of: {"y": sigmoid.value(of["x"])},
        "g * y * (1 - y)",
        (
            Slip("one-factor", "g * (1 - y)", "Where y nears 0 the curve is flat too."),
            Slip("of-tanh", "g * (1 - y**2)", "That is the slope of tanh."),
            Slip("of-the-input", "g * x * (1 - x)", "It is made of the value, not of x."),
            Slip("exponential-lost", "g * y**2", "The slope of exp(−x) is a factor still."),
        ),
        "∂y/∂x = exp(−x) / (1 + exp(−x))² = y (1 − y)\n∂L/∂x = g y (1 − y)",
        ("Derive 1 / (1 + exp(−x)) as a quotient.", "exp(−x) / (1 + exp(−x)) is 1 − y."),
    ),
    Case(
        "SwiGLU by its gate", "h = a * sigmoid(a) * u", "h", "a", vectors("a", "u", "g"), operation(GATED, "a", "u"),
        lambda of: {"s": sigmoid.value(of["a"])},
        "g * u * (s + a * s * (1 - s))",
        (
            Slip("up-forgotten", "g * (s + a * s * (1 - s))", "u multiplies: it multiplies the slope too."),
            Slip("first-factor", "g * u * s", "sigmoid(a) moves with a as well."),
            Slip("second-factor", "g * u * a * s * (1 - s)", "The first factor, a itself, moves as well."),
            Slip("of-the-sigmoid", "g * u * s * (1 - s)", "That is the slope of the sigmoid alone."),
        ),
        "f(a) = a σ(a), f' = σ + a σ (1 − σ)\n∂L/∂a = g u f'(a)",
        ("u does not depend on a: it stays as a factor.", "a · sigmoid(a) is a product."),
        opens="blocks.0.mlp.hidden",
    ),
    Case(
        "SwiGLU by what is gated", "h = a * sigmoid(a) * u", "h", "u", vectors("a", "u", "g"),
        operation(GATED, "a", "u"), lambda of: {"s": sigmoid.value(of["a"])},
        "g * a * s",
        (
            Slip("gate-without-a", "g * s", "The gate is a · sigmoid(a), the whole of it."),
            Slip("value-for-slope", "g * a * s * u", "That is g times h itself; u's slope is 1."),
            Slip("gate-not-activated", "g * a", "The gate goes through its sigmoid first."),
        ),
        "h is linear in u: ∂h/∂u = a σ(a)\n∂L/∂u = g a σ(a)",
        ("Which factors do not depend on u?",),
        opens="blocks.0.mlp.hidden",
    ),
    Case(
        "a residual sum", "y = x + f, f = tanh(x)", "y", "x", vectors("x", "g"), _with_residual(),
        lambda of: {"f": np.tanh(of["x"])},
        "g + g * (1 - f**2)",
        (
            Slip("path-forgotten", "g * (1 - f**2)", "x reaches y on a second way, unchanged."),
            Slip("branch-forgotten", "g + 0 * x", "x reaches y through tanh as well."),
            Slip("ways-multiplied", "g + g * f", "What comes back through tanh is times its slope, not its value."),
            Slip("upstream-once", "g + 1 - f**2", "What arrives from above goes back both ways."),
        ),
        "two ways lead from x to y, and gradients add\n∂L/∂x = g + g (1 − tanh²(x))",
        ("Two ways lead from x to y.", "Gradients of several ways are added."),
        opens="blocks.0.residual2",
    ),
    Case(
        "a scaled dot product", "s = dot(q, k) / sqrt(n), a number", "s", "q", with_number("g", "q", "k"),
        _scaled_dot(), lambda of: {"n": len(of["q"])},
        "g * k / sqrt(n)",
        (
            Slip("not-divided", "g * k", "The score is divided; its slope is too."),
            Slip("divided-by-n", "g * k / n", "By which number is the score divided?"),
        ),
        "s = Σ_i q_i k_i / √n, so ∂s/∂q_i = k_i / √n\n∂L/∂q = g k / √n",
        ("Which term of the sum has q_i, and what is it multiplied by?",),
        opens="blocks.0.attention.scores",
    ),
    Case(
        "a length", "n = norm(x) = sqrt(sum(x**2)), a number", "n", "x", with_number("g", "x"),
        formula(norm, "x"), lambda of: {"n": norm.function(of["x"])},
        "g * x / n",
        (
            Slip("of-the-square", "2 * g * x", "That is the slope of the square; the root is still to come."),
            Slip("no-half", "2 * g * x / n", "The root's slope is 1 / (2 · root)."),
            Slip("half", "g * x / (2 * n)", "The square's slope has a 2 of its own."),
            Slip("not-divided", "g * x", "The direction of x has length 1."),
        ),
        "n² = Σ x², so 2 n ∂n/∂x_i = 2 x_i\n∂L/∂x = g x / n",
        ("Square both sides and derive.", "Of a longer x the length grows no faster: what divides?"),
    ),
    Case(
        "a cosine", "c = dot(x, y) / (m * n), m = norm(x), n = norm(y)", "c", "x",
        with_number("g", "x", "y"), formula(cosine_similarity, "x", "y"),
        lambda of: {"c": cosine_similarity.function(of["x"], of["y"]), "m": norm.function(of["x"]),
                    "n": norm.function(of["y"])},
        "g * (y / n - c * x / m) / m",
        (
            Slip("length-held", "g * y / (m * n)", "m moves with x as well."),
            Slip("no-cosine", "g * (y / n - x / m) / m", "How much of y's direction lies along x is not all of it."),
            Slip("no-quotient", "g * (y / n - c * x / m)", "A longer x turns less: one more length divides."),
        ),
        "∂m/∂x = x / m\n∂c/∂x = y / (m n) − c x / m²\n∂L/∂x = g (y / n − c x / m) / m",
        ("A quotient: both dot(x, y) and m move with x.", "∂m/∂x = x / m."),
    ),
)  # fmt: skip
