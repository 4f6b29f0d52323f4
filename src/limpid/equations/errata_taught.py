"""What texts for beginners have wrong or loose, with the numbers that show it."""

from __future__ import annotations

import itertools

import numpy as np

from limpid.equations.erratum import Erratum, Numbers
from limpid.maths import foundations, relu
from limpid.maths.loss import perplexity
from limpid.maths.operation import Array

QUERY, KEY = np.array([[1, 0], [0, 1], [1, 1]]), np.array([[1, 1], [0, 1], [1, 0]])
VALUE = np.array([[10, 0], [0, 10], [5, 5]])


def _listed(x: Array, places: int = 0) -> str:
    return str(np.round(x, places).tolist())


def _product() -> Numbers:
    a, b = np.array([[1, 2], [0, 3]]), np.array([[2, 1], [1, 4]])
    return [("row by column", _listed(foundations.matmul(a, b))), ("entry by entry", _listed(1.0 * a * b))]


def _collapse() -> Numbers:
    a, b, v = np.array([[1, 1], [0, 2]]), np.array([[1, 0], [1, 1]]), np.array([-2, 1])
    between = foundations.matmul(a, relu(foundations.matmul(b, v)))
    return [
        ("A (B v)", _listed(foundations.matmul(a, foundations.matmul(b, v)))),
        ("(A B) v", _listed(foundations.matmul(foundations.matmul(a, b), v))),
        ("A relu(B v)", _listed(between)),
    ]


def _amplified() -> Numbers:
    p = foundations.softmax([2, 1, 0.5])
    return [
        ("difference of the first two scores", "1"),
        ("difference of the logarithms of their probabilities", f"{np.log(p[0] / p[1]):.6g}"),
        ("ratio of their probabilities", f"{p[0] / p[1]:.6g}"),
    ]


def _rounded() -> Numbers:
    p = np.array([0.05, 0.12, 0.08, 0.70])
    return [
        ("terms rounded to two places, added", f"{np.log(p).round(2).sum():.2f}"),
        ("added, then rounded", f"{foundations.joint_log_probability(p):.2f}"),
    ]


def _cosines() -> Numbers:
    from limpid.tracing.worked import weights

    found = []
    for name in ("embed.tokens.weight", "blocks.0.mlp.output.weight"):
        table = weights()[name]
        every = [foundations.cosine_similarity(x, y) for x, y in itertools.combinations(table, 2)]
        size = f"{np.mean(np.abs(every)):.2f} on average, signs aside; the largest is {max(every):.2f}"
        found.append((f"rows drawn by chance, of {table.shape[1]} entries", size))
    return found


def _itself() -> Numbers:
    return [
        (name, _listed(foundations.attention(QUERY, KEY, VALUE, causal=causal), 4))
        for name, causal in (
            ("each position sees all, itself included", False),
            ("a language model's sees none ahead", True),
        )
    ]


def _masked() -> Numbers:
    tokens, heads = 100, 8
    seen = foundations.attention_weights(np.zeros((tokens, 1)), np.zeros((tokens, 1)), causal=True) > 0
    return [
        ("scores of 100 tokens in 8 heads", f"{heads * tokens**2:,}"),
        ("of these not masked", f"{heads * int(seen.sum()):,}"),
    ]


def _descent() -> Numbers:
    after = [float(foundations.gradient_step([1.0], [2.0], rate)[0]) ** 2 for rate in (0.1, 1.1)]
    return [
        ("x² at 1", "1"),
        *((f"after a step of {rate}", f"{x:.2f}") for rate, x in zip((0.1, 1.1), after, strict=True)),
    ]


def _tokenizers() -> Numbers:
    nats, sizes = 12.0, (4, 6)
    return [(f"a text of 12 nats, cut into {size} tokens", f"{perplexity(nats / size):.2f}") for size in sizes]


TAUGHT = (
    Erratum(
        "product-of-matrices",
        "matrices are multiplied elementwise",
        "each entry is a row of the left one with a column of the right one",
        _product,
    ),
    Erratum(
        "stacked-layers",
        "stacking layers is multiplying their matrices",
        "only without a nonlinearity between them; with one, no single matrix does what they do",
        _collapse,
    ),
    Erratum(
        "softmax-differences",
        "softmax keeps differences of scores, but amplified",
        "as logarithms of ratios they are kept exactly; the ratios are e to the difference",
        _amplified,
    ),
    Erratum(
        "rounded-terms",
        "a log-probability is added up from terms rounded as they are printed",
        "round once, at the end",
        _rounded,
    ),
    Erratum(
        "cosine-ranges",
        "cosines above 0.9 mean synonyms, and lower ranges other kinds of kinship",
        "the spread depends on the model and the number of entries: measure it on the table in question",
        _cosines,
    ),
    Erratum(
        "attention-to-others",
        "attention looks at all other tokens",
        "at itself too, and in a language model at none that lies ahead",
        _itself,
    ),
    Erratum(
        "scores-of-attention",
        "8 heads over 100 tokens take 80,000 dot products, and these are the layer",
        "with the causal mask 40,400 of these scores count; mixing the values and the projections come on top",
        _masked,
    ),
    Erratum(
        "every-step-descends",
        "each step of gradient descent lowers the loss",
        "one that is too long raises it, and so may one on a noisy gradient",
        _descent,
    ),
    Erratum(
        "a-good-perplexity",
        "a low perplexity means a good model",
        "perplexity is counted by token: the same text at the same probability has another with another tokenizer",
        _tokenizers,
    ),
)
