"""Where well-known texts are wrong or loose, and the numbers that show it, computed now."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.equations.errata_taught import TAUGHT
from limpid.equations.erratum import Erratum, Numbers
from limpid.equations.published import answered, reproduce
from limpid.maths import alignment, foundations
from limpid.maths.activation import GELU, GELUTanh


def errata() -> tuple[Erratum, ...]:
    """The corrections of this project, then published numbers that a recomputation did not confirm."""
    looked_wrong = [row for row in answered() if row["confirmed"].startswith("source looks wrong")]
    return (*OURS, *(_published(row) for row in looked_wrong))


def _published(row: dict[str, Any]) -> Erratum:
    return Erratum(
        str(row["id"]),
        f"{row['source']}",
        f"{row.get('note', '')}",
        lambda: [("printed", _plain(row["published"])), ("computed", _plain(reproduce(row).ours))],
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return f"[{', '.join(_plain(inner) for inner in value)}]"
    return f"{float(value):.9g}"


def _flops() -> Numbers:
    flops = foundations.matmul_flops(2048, 4096, 4096)
    return [("multiply-adds", f"{flops / 2e9:.1f} G"), ("floating-point operations", f"{flops / 1e9:.1f} GFLOP")]


def _gelu() -> Numbers:
    x, h = np.array([-1.0]), 1e-6
    exact, tanh = GELU(), GELUTanh()
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    mixed = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (-1 - 0.044715))) - density
    measured = (tanh.value(x + h) - tanh.value(x - h)) / (2 * h)
    return [
        ("slope of the tanh form at -1, by finite differences", f"{measured[0]:.8f}"),
        ("its own derivative", f"{tanh.slope(x)[0]:.8f}"),
        ("tanh share with the exact density", f"{mixed:.8f}"),
        ("derivative of the exact form", f"{exact.slope(x)[0]:.8f}"),
    ]


def _mlp() -> Numbers:
    d = 4096
    return [
        ("plain, hidden 4d", f"{2 * d * 4 * d / d**2:.0f} d²"),
        ("gated, hidden 4d", f"{3 * d * 4 * d / d**2:.0f} d²"),
        ("gated, hidden 8/3 d", f"{3 * d * (8 * d / 3) / d**2:.0f} d²"),
        ("norms, LayerNorm and RMSNorm", f"{2 * 2 * d / d:.0f} d and {2 * d / d:.0f} d"),
    ]


def _cache() -> Numbers:
    layers, d_head, length, size = 80, 128, 128 * 1024, 2
    full = 2 * layers * length * 64 * d_head * size
    shared = 2 * layers * length * 8 * d_head * size
    return [("64 key heads", f"{full / 2**30:.0f} GiB"), ("8 key heads", f"{shared / 2**30:.0f} GiB")]


def _nucleus() -> Numbers:
    p = np.array([0.3, 0.1, 0.1, 0.5])
    at_most = np.cumsum(np.sort(p)[::-1]) <= 0.7
    return [
        ("p = 0.7 of [.5, .3, .1, .1]: tokens whose mass stays below it", str(int(at_most.sum()))),
        ("the smallest set that reaches it", str(int((foundations.top_p(p, 0.7) > 0).sum()))),
    ]


def _penalty() -> Numbers:
    z = np.array([-2.0, 1.0])
    right, divided = foundations.repetition_penalty(z, np.array([0]), 2.0), np.array([z[0] / 2.0, z[1]])
    found = (("before", z), ("multiplied", right), ("divided", divided))
    return [
        (f"probability of a seen token with logit -2, {name}", f"{foundations.softmax(x)[0]:.4f}") for name, x in found
    ]


def _worked() -> Numbers:
    from limpid.tracing.worked import worked_step

    step = worked_step()
    return [
        ("loss of the worked model", f"{step.loss:.9f} nats"),
        ("gradient of E_token[<BOS>][0]", f"{step.gradients['embed.tokens.weight'][1, 0]:.9f}"),
        ("the invented one in print", "-0.352893"),
    ]


def _divergence() -> Numbers:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    score = np.eye(3) - p  # of each outcome, along the logits of p
    found = [("of KL(π‖π₀) itself", (p * np.log(p / q)) @ score), ("of KL(π₀‖π)", p - q)]
    for kind in ("k1", "k2", "k3", "k3 times the ratio"):
        found.append((f"of {kind}, on average over π", (p * _slope(kind, np.log(p), np.log(q))) @ score))
    return [(f"gradient {name}", ", ".join(f"{one:+.6f}" for one in np.round(x, 12) + 0.0)) for name, x in found]


def _slope(kind: str, log_p: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Of an estimate along ln π, on policy: where ρ = 1, and so is its slope."""
    one = np.ones(log_p.shape)
    if kind != "k3 times the ratio":
        return np.asarray(alignment.kl_estimate.backward(one, log_p, reference, kind)[0])
    direct, _, through_ratio = alignment.weighted_kl_estimate.backward(one, log_p, reference, one)
    return np.asarray(direct) + np.asarray(through_ratio)


OURS: tuple[Erratum, ...] = (
    Erratum(
        "matrix-product-flops",
        "a (2048 × 4096)(4096 × 4096) product takes 34 GFLOP",
        "it takes 34 G multiply-adds, and a multiply-add is two operations: 2mnp",
        _flops,
    ),
    Erratum(
        "gelu-derivatives",
        "Φ(x) + x φ(x) is the derivative of GELU, whichever form computes it",
        "each form has its own derivative; the tanh share with the exact density is the derivative of neither",
        _gelu,
    ),
    Erratum(
        "gated-mlp-parameters",
        "a gated MLP has 12 d² parameters",
        "only when its hidden size is 4d; at the usual 8/3 d it has 8 d², as a plain one",
        _mlp,
    ),
    Erratum(
        "cache-of-a-70b-model",
        "the KV cache of a 70B model takes 320 GB",
        "that is full multi-head attention over 131,072 tokens in 16 bits; with 8 key heads it is an eighth",
        _cache,
    ),
    Erratum(
        "nucleus",
        "nucleus sampling keeps tokens while their mass is at most p",
        "it keeps the smallest set whose mass reaches p, so never an empty one",
        _nucleus,
    ),
    Erratum(
        "repetition-penalty",
        "logits of tokens that occurred are divided by the penalty",
        "a negative logit is multiplied: dividing would make the token likelier",
        _penalty,
    ),
    Erratum(
        "worked-model-gradients",
        "published walks through the 3,456-parameter model go on with gradients made up for the purpose",
        "here one unbroken chain leads from the tokens to the update: `limpid trace --worked`",
        _worked,
    ),
    Erratum(
        "gradient-of-a-kl-estimate",
        "GRPO's penalty (k3 in the loss) keeps the policy near the reference by an unbiased estimate of KL(π‖π₀)",
        "unbiased is its value; its mean gradient is that of KL(π₀‖π), k2's and that of k3 times the ratio are "
        "KL(π‖π₀)'s, and k1's is 0: k1 belongs into the reward",
        _divergence,
    ),
    *TAUGHT,
)
