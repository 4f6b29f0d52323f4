"""The multilayer perceptron by itself, and back-propagation through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.activation import Activation, Tanh
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


class Layers(NamedTuple):
    """What an MLP computed on its way up."""

    z: tuple[Float[Array, "_ _"], ...]  # (example, width)  before each layer's nonlinearity; the last are the logits
    h: tuple[Float[Array, "_ _"], ...]  # (example, width)  what goes into each layer; the first is x


@formula(
    r"h_0 = x, \quad z_l = W_l h_{l-1} + b_l, \quad h_l = f(z_l), \quad \text{logits} = z_L",
    Branch.CALCULUS,
    "Rumelhart, Hinton & Williams 1986, eq. 1 and 2, doi:10.1038/323533a0",
)
def perceptron(
    x: Float[Array, "example d_in"],
    weights: Sequence[Float[Array, "_ _"]],
    biases: Sequence[Float[Array, "_"]],
    activation: Activation = Tanh(),  # noqa: B008  frozen
) -> Layers:
    """An MLP of L layers: linear maps with a nonlinearity between, none after the last.

    Takes   x           (example, d_in)
            weights     (d_out, d_in) of each layer
            biases      (d_out,) of each layer
            activation  f
    Gives   z and h of every layer; z[-1] are the logits, or the values of a regression
    Limits  one layer is a linear map; one wide hidden layer can fit any continuous function on a bounded set
    Raises  ShapeError when a layer does not fit the one before
    """
    h, z = [floats(x)], []
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        weight = floats(weight)
        if weight.ndim != 2 or weight.shape[1] != h[-1].shape[-1]:
            raise ShapeError(f"layer {layer} has a weight of shape {weight.shape}, but {h[-1].shape[-1]} inputs")
        z.append(h[-1] @ weight.T + floats(bias))
        h.append(activation.value(z[-1]))
    return Layers(tuple(z), tuple(h[:-1]))


@formula(
    r"\delta_L = \bar z_L, \quad \delta_l = (W_{l+1}^\top \delta_{l+1}) \odot f'(z_l), \quad "
    r"\bar W_l = \delta_l h_{l-1}^\top, \quad \bar b_l = \delta_l",
    Branch.CALCULUS,
    "Rumelhart, Hinton & Williams 1986, eq. 4 to 7, doi:10.1038/323533a0",
)
def back_propagate(
    logits_bar: Float[Array, "example d_out"],
    layers: Layers,
    weights: Sequence[Float[Array, "_ _"]],
    activation: Activation = Tanh(),  # noqa: B008  frozen
) -> tuple[list[Array], list[Array], Array]:
    """Carry an MLP's error from the last layer to the first: one pass gives every derivative.

    Takes   logits_bar  (example, d_out)  gradient of the loss with respect to the logits, δ_L
            layers      what `perceptron` gave
            weights     (d_out, d_in) of each layer
            activation  f, the same
    Gives   gradients of each weight, of each bias, and of x, summed over the examples (x: each its own)
    Limits  costs about twice the forward pass, however many parameters there are; finite differences need one each
    """
    delta = floats(logits_bar)
    weight_bars: list[Array] = []
    bias_bars: list[Array] = []
    for layer in reversed(range(len(weights))):
        weight_bars.insert(0, delta.T @ layers.h[layer])
        bias_bars.insert(0, delta.sum(0))
        delta = delta @ floats(weights[layer])
        if layer:
            delta = delta * activation.slope(layers.z[layer - 1])
    return weight_bars, bias_bars, delta
