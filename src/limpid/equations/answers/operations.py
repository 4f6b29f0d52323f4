"""Published numbers about the operations of a step, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid import maths
from limpid.equations.answers.kinds import Inputs, a, kind
from limpid.maths import foundations
from limpid.maths.activation import GELU, GELUTanh, Sigmoid, SiLU
from limpid.maths.alignment.preference import log_sigmoid


@kind("softmax", "softmax")
def _softmax(x: Inputs) -> Any:
    return [foundations.softmax(row) for row in x["x"]]


@kind("softmax.all", "softmax")
def _softmax_all(x: Inputs) -> Any:
    return foundations.softmax(x["x"], axis=None).tolist()


@kind("softmax.rows", "softmax")
def _softmax_rows(x: Inputs) -> Any:
    return {"small": foundations.softmax(x["x"]).tolist(), "large": foundations.softmax(x["big"]).tolist()}


@kind("log_softmax", "log_softmax")
def _log_softmax(x: Inputs) -> Any:
    return foundations.log_softmax(x["x"]).tolist()


@kind("sigmoid_and_log_sigmoid", "Sigmoid")
def _sigmoid(x: Inputs) -> Any:
    return {"sigmoid": Sigmoid()(x["x"]).tolist(), "log_sigmoid": log_sigmoid(a(x["log_x"])).tolist()}


@kind("gelu.exact", "GELU")
def _gelu(x: Inputs) -> Any:
    return GELU()(x["x"]).tolist()


@kind("gelu.both", "GELU", "GELUTanh")
def _gelu_both(x: Inputs) -> Any:
    return {"exact": GELU()(x["x"]).tolist(), "tanh": GELUTanh()(x["x"]).tolist()}


@kind("activations", "GELU", "GELUTanh", "SiLU")
def _activations(x: Inputs) -> Any:
    found = {"gelu_tanh": GELUTanh(), "gelu_erf": GELU(), "silu": SiLU()}
    return {name: activation(x["x"]).tolist() for name, activation in found.items()}


@kind("rmsnorm", "RMSNorm")
def _rmsnorm(x: Inputs) -> Any:
    return maths.RMSNorm(x["eps"])(x["x"], x["weight"]).tolist()


@kind("layernorm", "LayerNorm")
def _layernorm(x: Inputs) -> Any:
    return maths.LayerNorm(x["eps"])(x["x"], x["weight"], x["bias"]).tolist()


@kind("swiglu", "Gated", "Linear")
def _swiglu(x: Inputs) -> Any:
    weight, bias = np.full(x["shape"], float(x["weight"])), np.full(x["shape"][0], float(x["bias"]))
    gate, up = (maths.Linear()(a(x["x"]), weight, bias) for _ in range(2))
    return maths.Gated()(gate, up).tolist()


@kind("attention.single_head", "attention")
def _attention(x: Inputs) -> Any:
    tokens = a(x["x"])
    query, key, value = (tokens @ a(x[name]) for name in ("w_q", "w_k", "w_v"))
    return foundations.attention(query, key, value, scale=None if x["scaled"] else 1.0).tolist()


@kind("attention.sliding_window_two_sided", "attention")
def _window(x: Inputs) -> Any:
    return foundations.attention(x["q"], x["k"], x["v"], window=x["window"] + 1).tolist()


@kind("positional.sinusoidal", "SinusoidalPositions")
def _sinusoidal(x: Inputs) -> Any:
    table = maths.SinusoidalPositions(max(x["positions"]) + 1, x["d_model"], x["base"])()
    return table[x["positions"]].tolist()


@kind("gradient.softmax_matmul", "softmax", "matmul")
def _softmax_matmul(x: Inputs) -> Any:
    first, second = a(x["a"]), a(x["b"])
    product = first @ second
    ones = np.ones((2, 2))
    p_bar, second_bar = foundations.matmul.backward(ones, foundations.softmax(product), second)
    (product_bar,) = foundations.softmax.backward(p_bar, product)
    first_bar, also = foundations.matmul.backward(product_bar, first, second)
    return [np.asarray(first_bar).tolist(), np.asarray(a(second_bar) + a(also)).tolist()]


@kind("gradient.cross_entropy", "softmax_cross_entropy", "matmul")
def _loss_matmul(x: Inputs) -> Any:
    first, second = a(x["a"]), a(x["b"])
    (logits_bar, _) = foundations.softmax_cross_entropy.backward(1.0, first @ second, a(x["targets"]))
    return [np.asarray(bar).tolist() for bar in foundations.matmul.backward(logits_bar, first, second)]


@kind("gradient.sigmoid_neuron", "Sigmoid")
def _neuron(x: Inputs) -> Any:
    w, inputs = a(x["w"]), np.append(a(x["x"]), 1.0)
    y, saved = Sigmoid().forward(a(w @ inputs))
    (slope,) = Sigmoid().backward(a(1.0), saved)
    return {"forward": float(y), "dx": (slope * w[:2]).tolist(), "dw": (slope * inputs).tolist()}
