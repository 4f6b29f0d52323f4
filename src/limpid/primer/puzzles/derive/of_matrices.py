"""Operations on matrices, to be derived: products, attention's scores, weights and mix, the loss of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid.maths.attention import Mix, Scores
from limpid.maths.foundations import matmul
from limpid.maths.foundations.probability import softmax
from limpid.maths.linear import Linear
from limpid.maths.loss import LogSoftmax, NegativeLogLikelihood
from limpid.maths.norm import RMSNorm
from limpid.maths.operation import Array
from limpid.primer.puzzles.derive.case import Case, Pass, Slip, Values, formula, operation

LOGS, LOSS, MIX = LogSoftmax(), NegativeLogLikelihood(), Mix()
SQUARE_NOT = "The shapes of both factors leave one order alone."


def matrices(**shapes: str) -> Callable[[np.random.Generator], dict[str, Array]]:
    """Draws matrices whose letters are sizes, each 2 to 5 and unlike the others."""

    def draw(rng: np.random.Generator) -> dict[str, Array]:
        letters = sorted(set("".join(shapes.values())))
        sizes = dict(zip(letters, map(int, rng.choice([2, 3, 4, 5], len(letters), replace=False)), strict=True))
        return {name: rng.normal(size=[sizes[letter] for letter in said]) for name, said in shapes.items()}

    return draw


def _logits(rng: np.random.Generator) -> dict[str, Any]:
    rows, vocab = (int(size) for size in rng.choice([2, 3, 4, 5], 2, replace=False))
    return {"Z": rng.normal(size=(rows, vocab)) * 1.5, "t": rng.integers(vocab, size=rows)}


def _loss() -> Pass:
    """The mean surprise of logits: a logarithm of softmax, and the choice of the targets."""

    def backward(of: Values) -> dict[str, Array]:
        logs, saved = LOGS.forward(of["Z"])
        _, chosen = LOSS.forward(logs, of["t"])
        back, _ = LOSS.backward(np.asarray(1.0), chosen)
        return {"Z": LOGS.backward(back, saved)[0]}

    return Pass(lambda of: LOSS.forward(LOGS.forward(of["Z"])[0], of["t"])[0], backward)


def _at_hand(of: Values) -> dict[str, Any]:
    rows, vocab = of["Z"].shape
    return {"P": np.exp(LOGS.forward(of["Z"])[0]), "Y": np.eye(vocab)[of["t"]], "b": rows, "v": vocab}


def _heads(x: Array) -> Array:
    """A matrix of one head of one sequence, as attention takes it."""
    return x[None, :, None, :]


def _scores() -> Pass:
    """Queries against keys, one head."""

    def made(of: Values) -> tuple[Scores, tuple[Array, Any]]:
        scores = Scores(1 / np.sqrt(of["Q"].shape[1]))
        return scores, scores.forward(_heads(of["Q"]), _heads(of["K"]))

    def backward(of: Values) -> dict[str, Array]:
        scores, (_, saved) = made(of)
        q, k = scores.backward(of["G"][None, None], saved)
        return {"Q": q[0, :, 0], "K": k[0, :, 0]}

    return Pass(lambda of: made(of)[1][0][0, 0], backward)


def _mix() -> Pass:
    """Weights times values, one head."""

    def backward(of: Values) -> dict[str, Array]:
        _, saved = MIX.forward(of["A"][None, None], _heads(of["V"]))
        a, v = MIX.backward(_heads(of["G"]), saved)
        return {"A": a[0, 0], "V": v[0, :, 0]}

    return Pass(lambda of: MIX.forward(of["A"][None, None], _heads(of["V"]))[0][0, :, 0], backward)


def _norm_rows(rng: np.random.Generator) -> dict[str, Any]:
    found = matrices(X="bd", G="bd")(rng)
    return {**found, "w": rng.normal(size=found["X"].shape[1])}


CASES = (
    Case(
        "a matrix product by its left factor", "Y = X @ W", "Y", "X", matrices(X="bn", W="np", G="bp"),
        formula(matmul, "X", "W", bar="G"), lambda of: {},
        "G @ W.T",
        (),
        "Y_ik = Σ_j X_ij W_jk, so ∂Y_ik/∂X_ij = W_jk\n∂L/∂X_ij = Σ_k G_ik W_jk = (G Wᵀ)_ij",
        ("Write one entry of Y as a sum, and see what X_ij is multiplied by.", SQUARE_NOT),
        bar="G",
        opens="logits",
    ),
    Case(
        "a matrix product by its right factor", "Y = X @ W", "Y", "W", matrices(X="bn", W="np", G="bp"),
        formula(matmul, "X", "W", bar="G"), lambda of: {"b": len(of["X"])},
        "X.T @ G",
        (Slip("mean-over-rows", "X.T @ G / b", "A weight gets what every row sends back, added up."),),
        "Y_ik = Σ_j X_ij W_jk, so ∂Y_ik/∂W_jk = X_ij\n∂L/∂W_jk = Σ_i X_ij G_ik = (Xᵀ G)_jk",
        ("Write one entry of Y as a sum, and see what W_jk is multiplied by.", SQUARE_NOT),
        bar="G",
        opens="logits",
    ),
    Case(
        "a linear layer's weight, as PyTorch keeps it", "Y = X @ W.T + c", "Y", "W",
        lambda rng: {**(found := matrices(X="bn", W="pn", G="bp")(rng)), "c": rng.normal(size=len(found["W"]))},
        operation(Linear(), "X", "W", "c", bar="G"), lambda of: {"b": len(of["X"])},
        "G.T @ X",
        (Slip("mean-over-rows", "G.T @ X / b", "A weight gets what every row sends back, added up."),),
        "Y_ik = Σ_j X_ij W_kj + c_k, so ∂Y_ik/∂W_kj = X_ij\n∂L/∂W_kj = Σ_i G_ik X_ij = (Gᵀ X)_kj",
        ("Write one entry of Y as a sum, and see what W_kj is multiplied by.", SQUARE_NOT),
        bar="G",
        opens="blocks.0.mlp.up",
    ),
    Case(
        "a linear layer's offset", "Y = X @ W.T + c", "Y", "c",
        lambda rng: {**(found := matrices(X="bn", W="pn", G="bp")(rng)), "c": rng.normal(size=len(found["W"]))},
        operation(Linear(), "X", "W", "c", bar="G"), lambda of: {"b": len(of["X"])},
        "sum(G, axis=0)",
        (Slip("mean-over-rows", "mean(G, axis=0)", "An offset is in every row, and gets what each sends back."),),
        "c_k is in every row: ∂Y_ik/∂c_k = 1\n∂L/∂c_k = Σ_i G_ik",
        ("In how many rows of Y does c_k stand?", "Gradients of several ways are added."),
        bar="G",
        opens="blocks.0.mlp.up",
    ),
    Case(
        "RMSNorm's gain", "Y = w * H, each row of H a row of X divided by its root mean square R", "Y", "w",
        _norm_rows, operation(RMSNorm(), "X", "w", bar="G"),
        lambda of: {"H": RMSNorm().forward(of["X"], of["w"])[1].x_hat, "R": RMSNorm().forward(of["X"], of["w"])[1].r,
                    "b": len(of["X"])},
        "sum(G * H, axis=0)",
        (
            Slip("mean-over-rows", "mean(G * H, axis=0)", "The gain is in every row, and gets what each sends back."),
            Slip("not-normalised", "sum(G * X, axis=0)", "Which rows does w multiply, those of X or of H?"),
            Slip("input-forgotten", "sum(G, axis=0)", "That is for an offset; w multiplies."),
        ),
        "Y_bi = w_i H_bi, so ∂Y_bi/∂w_i = H_bi\n∂L/∂w_i = Σ_b G_bi H_bi",
        ("What is w_i multiplied by in row b?", "The same w serves all rows: add."),
        bar="G",
        opens="blocks.0.norm2",
    ),
    Case(
        "the loss of logits",
        "L = the mean over rows of −ln P[target]; P is softmax of each row of Z, Y has a 1 at each row's target",
        "L", "Z", _logits, _loss(), _at_hand,
        "(P - Y) / b",
        (
            Slip("mean-forgotten", "P - Y", "The loss is the mean over the rows."),
            Slip("divided-by-classes", "(P - Y) / v", "The mean is over rows, not over classes."),
            Slip("target-forgotten", "P / b", "The target's own logit is in the numerator as well."),
            Slip("before-softmax", "-Y / P / b", "That is by P: softmax is still to be gone back through."),
            Slip("target-alone", "-Y / b", "The denominator of softmax holds every logit."),
        ),
        "L = mean(ln Σ_j exp(Z_j) − Z_target)\n∂L/∂Z_rj = (P_rj − Y_rj) / b",
        ("−ln softmax(z)[t] = ln Σ exp(z) − z_t: derive both terms.", "The mean over rows divides."),
        bar="",
        opens="loss",
    ),
    Case(
        "attention's scores by the queries", "S = Q @ K.T / sqrt(d)", "S", "Q", matrices(Q="id", K="jd", G="ij"),
        _scores(), lambda of: {"d": of["Q"].shape[1]},
        "G @ K / sqrt(d)",
        (
            Slip("not-divided", "G @ K", "Scores are divided; their slope is too."),
            Slip("divided-by-d", "G @ K / d", "By which number are scores divided?"),
        ),
        "S_ij = Σ_f Q_if K_jf / √d, so ∂S_ij/∂Q_if = K_jf / √d\n∂L/∂Q_if = Σ_j G_ij K_jf / √d",
        ("Query i meets every key: which sum is that?", SQUARE_NOT),
        bar="G",
        opens="blocks.0.attention.scores",
    ),
    Case(
        "attention's scores by the keys", "S = Q @ K.T / sqrt(d)", "S", "K", matrices(Q="id", K="jd", G="ij"),
        _scores(), lambda of: {"d": of["Q"].shape[1]},
        "G.T @ Q / sqrt(d)",
        (
            Slip("not-divided", "G.T @ Q", "Scores are divided; their slope is too."),
            Slip("divided-by-d", "G.T @ Q / d", "By which number are scores divided?"),
        ),
        "S_ij = Σ_f Q_if K_jf / √d, so ∂S_ij/∂K_jf = Q_if / √d\n∂L/∂K_jf = Σ_i G_ij Q_if / √d",
        ("Key j is met by every query: which sum is that?", SQUARE_NOT),
        bar="G",
        opens="blocks.0.attention.scores",
    ),
    Case(
        "attention's weights", "A = softmax of each row of S", "A", "S", matrices(S="ij", G="ij"),
        formula(softmax, "S", bar="G"), lambda of: {"A": softmax.function(of["S"])},
        "A * (G - sum(G * A, axis=1, keepdims=True))",
        (
            Slip("no-sum", "A * G", "A row sums to 1: each weight moves with every score of its row."),
            Slip("sum-over-all", "A * (G - sum(G * A))", "Rows know nothing of each other: one sum for each."),
            Slip("sum-over-queries", "A * (G - sum(G * A, axis=0))", "Which axis does the softmax sum over?"),
            Slip("diagonal", "G * A * (1 - A)", "That is how a weight moves with its own score alone."),
        ),
        "in each row ∂A_j/∂S_k = A_j ([j = k] − A_k)\n∂L/∂S_ij = A_ij (G_ij − Σ_k G_ik A_ik)",
        ("It is softmax's, row by row.", "A sum along a row keeps its axis: keepdims=True."),
        bar="G",
        opens="blocks.0.attention.weights",
    ),
    Case(
        "attention's mix by the values", "O = A @ V", "O", "V", matrices(A="ij", V="jd", G="id"), _mix(),
        lambda of: {"i": len(of["A"])},
        "A.T @ G",
        (Slip("mean-over-queries", "A.T @ G / i", "A value gets what every query sends back, added up."),),
        "O_if = Σ_j A_ij V_jf, so ∂O_if/∂V_jf = A_ij\n∂L/∂V_jf = Σ_i A_ij G_if",
        ("Value j goes into every query's mix, each with its weight.", SQUARE_NOT),
        bar="G",
        opens="blocks.0.attention.mixed",
    ),
    Case(
        "attention's mix by the weights", "O = A @ V", "O", "A", matrices(A="ij", V="jd", G="id"), _mix(),
        lambda of: {},
        "G @ V.T",
        (),
        "O_if = Σ_j A_ij V_jf, so ∂O_if/∂A_ij = V_jf\n∂L/∂A_ij = Σ_f G_if V_jf",
        ("What is A_ij multiplied by, in every entry of row i?", SQUARE_NOT),
        bar="G",
        opens="blocks.0.attention.mixed",
    ),
)  # fmt: skip
