"""Networks of one hidden layer: how well they can fit, and how they move in a step, by their width."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from limpid.maths.activation import ReLU, Tanh
from limpid.maths.foundations import back_propagate, gradient_step, perceptron, tangent_change, tangent_kernel
from limpid.maths.operation import Array
from limpid.maths.update import AdamW
from limpid.primer.updates import Terms, following

X = np.linspace(0, 1, 1001)
POINTS, TARGETS = np.array([[-1.0], [0.5], [1.0]]), np.array([0.5, -1.0, 1.0])
RATE, DRAWS, STEPS = 0.1, 10, 50
NONE = np.zeros(1)
POINTS_APART, TRAINED, TRAINING_RATE = 20, 1000, 0.02
"""Of the networks that are trained on the wave: every so many-th place of it, steps, the rate."""


def wave(x: Array) -> Array:
    """The function that is fitted: one turn of a sine."""
    return np.asarray(np.sin(2 * np.pi * x))


def fitted(width: int, x: Array = X) -> Array:
    """Of a network of so many ReLUs whose bends lie at equal distances, and which meets the wave at each of them."""
    bends = np.arange(width) / width
    slopes = width * np.diff(wave(np.append(bends, 1.0)))
    changes = np.diff(slopes, prepend=0.0)
    weights = [np.ones((width, 1)), changes[None]]
    return np.asarray(perceptron(x[:, None], weights, [-bends, np.full(1, wave(NONE)[0])], ReLU()).z[1][:, 0])


def worst(width: int) -> float:
    """The largest error of that network."""
    return float(np.abs(fitted(width) - wave(X)).max())


@cache
def trained(width: int, seed: int, steps: int = TRAINED) -> float:
    """The largest error of such a network, its weights drawn by chance, after so many steps of AdamW on the wave."""
    rng = np.random.Generator(np.random.PCG64(seed))
    x, target = X[::POINTS_APART, None], wave(X[::POINTS_APART])[:, None]
    inner = np.where(np.arange(width) % 2, -1.0, 1.0)  # half of the entries rise to the right, half to the left
    flat = np.concatenate((inner, -inner * rng.random(width), rng.standard_normal(width) / width**0.5, NONE))
    rule, terms = AdamW(0.0), list[Terms]()
    for _ in range(steps):
        weights, biases = _layers(flat, width)
        layers = perceptron(x, weights, biases, ReLU())
        by_weight, by_bias, _ = back_propagate((layers.z[1] - target) / len(x), layers, weights, ReLU())
        slope = np.concatenate((by_weight[0].ravel(), by_bias[0], by_weight[1].ravel(), by_bias[1]))
        terms.append(rule.terms(following(rule, flat, slope, TRAINING_RATE, terms)))
        flat = terms[-1]["parameter"]
    weights, biases = _layers(flat, width)
    return float(np.abs(perceptron(X[:, None], weights, biases, ReLU()).z[1][:, 0] - wave(X)).max())


def errors(width: int) -> Array:
    """Of three such trainings, the smallest first."""
    return np.sort([trained(width, seed) for seed in range(3)])


def _layers(flat: Array, width: int) -> tuple[list[Array], list[Array]]:
    """Weights and biases of both layers."""
    inner, bias, outer, offset = np.split(flat, [width, 2 * width, 3 * width])
    return [inner[:, None], outer[None]], [bias, offset]


class Net(NamedTuple):
    """y = v · tanh(u x + b) / √width."""

    u: Array  # (width, 1)
    b: Array  # (width,)
    v: Array  # (1, width)

    def outputs(self, x: Array) -> Array:
        layers = perceptron(x, [self.u, self.v], [self.b, NONE], Tanh())
        return np.asarray(layers.z[1][:, 0] / len(self.b) ** 0.5)

    def gradients(self, x: Array) -> Array:
        """Of each output with respect to u, b and v, a row per point."""
        return np.array([self._gradient(point[None]) for point in x])

    def _gradient(self, x: Array, of_outputs: Array | float = 1.0) -> Array:
        """Of the outputs' sum, or of what has the gradient `of_outputs`."""
        weights = [self.u, self.v]
        layers = perceptron(x, weights, [self.b, NONE], Tanh())
        given = np.broadcast_to(of_outputs, len(x))[:, None] * len(self.b) ** -0.5
        by_weight, by_bias, _ = back_propagate(given, layers, weights, Tanh())
        return np.concatenate((by_weight[0].ravel(), by_bias[0], by_weight[1].ravel()))

    def stepped(self, rate: float) -> Net:
        """After a step on half the squared error at the points."""
        flat = np.concatenate((self.u.ravel(), self.b, self.v.ravel()))
        loss_gradient = self._gradient(POINTS, self.outputs(POINTS) - TARGETS)
        u, b, v = np.split(gradient_step(flat, loss_gradient, rate), 3)
        return Net(u[:, None], b, v[None])


def drawn(width: int, seed: int) -> Net:
    """A network whose weights are drawn with the variance 1."""
    u, b, v = np.random.Generator(np.random.PCG64(seed)).standard_normal((3, width))
    return Net(u[:, None], b, v[None])


class Moved(NamedTuple):
    """Outputs before a step, how the kernel says they change, and how they do."""

    kernel: Array  # (point, point)
    before: Array
    predicted: Array
    changed: Array


@cache
def moved(width: int, rate: float, seed: int = 0) -> Moved:
    """One step of a network."""
    net = drawn(width, seed)
    kernel, before = tangent_kernel(net.gradients(POINTS)), net.outputs(POINTS)
    predicted = tangent_change(kernel, before - TARGETS, rate)
    return Moved(kernel, before, predicted, net.stepped(rate).outputs(POINTS) - before)


@cache
def drift(width: int, steps: int = STEPS) -> float:
    """By what share of itself the kernel changes in so many steps, mean over networks."""
    found = []
    for seed in range(DRAWS):
        net = drawn(width, seed)
        first = tangent_kernel(net.gradients(POINTS))
        for _ in range(steps):
            net = net.stepped(RATE)
        found.append(np.linalg.norm(tangent_kernel(net.gradients(POINTS)) - first) / np.linalg.norm(first))
    return float(np.mean(found))
