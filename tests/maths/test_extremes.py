"""Formulas at their ends: the mathematical value where there is one, an error where there is none."""

import math

import numpy as np
import pytest

from limpid import maths
from limpid.errors import LimpidError
from limpid.maths import UpdateInput, alignment, foundations

HUGE, TINY = 1e300, 1e-300


EXTREMES = {
    "softmax": (lambda: foundations.softmax([HUGE, -HUGE, 0]), [1, 0, 0]),
    "softmax of ties at the end": (lambda: foundations.softmax([HUGE, HUGE]), [0.5, 0.5]),
    "softmax with a mask": (lambda: foundations.softmax([0, -math.inf, 0]), [0.5, 0, 0.5]),
    "softmax of a certainty": (lambda: foundations.softmax([math.inf, 0]), [1, 0]),
    "log-softmax": (lambda: foundations.log_softmax([HUGE, 0]), [0, -HUGE]),
    "log-sum-exp": (lambda: foundations.log_sum_exp([HUGE, -HUGE]), HUGE),
    "log-sum-exp of nothing allowed": (lambda: foundations.log_sum_exp([-math.inf, -math.inf]), -math.inf),
    "norm, huge": (lambda: foundations.norm([3 * HUGE, 4 * HUGE]), 5 * HUGE),
    "norm, tiny": (lambda: foundations.norm([3 * TINY, 4 * TINY]), 5 * TINY),
    "norm of zeros": (lambda: foundations.norm([0, 0]), 0),
    "cosine": (lambda: foundations.cosine_similarity([HUGE, 0], [HUGE, HUGE]), 2**-0.5),
    "cosine, tiny": (lambda: foundations.cosine_similarity([TINY, 0], [TINY, TINY]), 2**-0.5),
    "entropy of certainty": (lambda: foundations.entropy([1, 0]), 0),
    "surprise at the impossible": (lambda: foundations.surprise(0.0), math.inf),
    "surprise at the certain": (lambda: foundations.surprise(1.0), 0),
    "divergence from the impossible": (lambda: foundations.kl_divergence([0.5, 0.5], [1, 0]), math.inf),
    "divergence of zeros": (lambda: foundations.kl_divergence([1, 0], [1, 0]), 0),
    "cross-entropy of zeros": (lambda: foundations.cross_entropy([1, 0], [1, 0]), 0),
    "binary cross-entropy": (lambda: foundations.binary_cross_entropy([HUGE, -HUGE], [1, 0]), [0, 0]),
    "reward": (lambda: alignment.reward_loss([HUGE], [-HUGE]), [0]),
    "reward lost": (lambda: alignment.reward_loss([-1e308], [0]), [1e308]),
    "rms norm, huge": (lambda: maths.RMSNorm()([[HUGE, -HUGE]], [1, 1]), [[1, -1]]),
    "rms norm, tiny": (lambda: maths.RMSNorm(0.0)([[TINY, -TINY]], [1, 1]), [[1, -1]]),
    "rms norm of zeros": (lambda: maths.RMSNorm()([[0.0, 0.0]], [1, 1]), [[0, 0]]),
    "layer norm, huge": (lambda: maths.LayerNorm()([[HUGE, -HUGE]], [1, 1], [0, 0]), [[1, -1]]),
    "layer norm of constants": (lambda: maths.LayerNorm()([[7.0, 7.0]], [1, 1], [2, 3]), [[2, 3]]),
    "batch norm of constants": (lambda: maths.BatchNorm()([[7.0], [7.0]], [1], [2]), [[2], [2]]),
    "gelu": (lambda: maths.GELU()([-HUGE, HUGE]), [0, HUGE]),
    "gelu, tanh": (lambda: maths.GELUTanh()([-HUGE, HUGE]), [0, HUGE]),
    "silu": (lambda: maths.SiLU()([-HUGE, HUGE]), [0, HUGE]),
    "sigmoid": (lambda: maths.Sigmoid()([-HUGE, HUGE]), [0, 1]),
    "tanh": (lambda: maths.Tanh()([-HUGE, HUGE]), [-1, 1]),
    "relu": (lambda: maths.ReLU()([-HUGE, HUGE]), [0, HUGE]),
    "slopes at the ends": (
        lambda: [float(f.backward(np.array(1.0), np.array(x))[0])
                 for f in (maths.GELU(), maths.GELUTanh(), maths.SiLU(), maths.Tanh())
                 for x in (-HUGE, HUGE)],
        [0, 1, 0, 1, 0, 1, 0, 0],
    ),
    "attention, one key far ahead": (lambda: foundations.attention([[1.0]], [[1e200], [0.0]], [[3.0], [5.0]]), [[3]]),
    "attention with an additive mask": (
        lambda: foundations.attention([[1.0]], [[1.0], [1.0]], [[3.0], [5.0]], mask=np.array([[0.0, -math.inf]])),
        [[3]],
    ),
    "no label": (lambda: foundations.softmax_cross_entropy([[1.0, 2.0]], [-100]), 0),
    "no step at all": (lambda: foundations.joint_log_probability([]), 0),
    "rank 0": (lambda: foundations.best_rank_k([[1.0, 2.0]], 0).matrix, [[0, 0]]),
    "rank of zeros": (lambda: foundations.effective_rank([[0.0, 0.0]]), 0),
    "polar factor of zeros": (lambda: foundations.polar_factor(np.zeros((2, 2))), [[0, 0], [0, 0]]),
    "ppo beyond the clip": (lambda: alignment.ppo([500.0], [0.0], [1.0]), [-1.2]),
    "clip of huge gradients": (lambda: maths.clip({"w": np.array([3 * HUGE, 4 * HUGE])}, 1.0)[0]["w"], [0.6, 0.8]),
    "adam, tiny gradients": (
        lambda: maths.Adam(eps=0.0).apply(
            UpdateInput(np.zeros(1), np.array([1e-100]), {"m": np.zeros(1), "v": np.zeros(1)}, 0.1, 1, False)
        )[0],
        [-0.1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_have_their_mathematical_value(name: str) -> None:
    compute, expected = EXTREMES[name]
    assert np.asarray(compute(), dtype=float) == pytest.approx(np.array(expected, dtype=float), rel=1e-12, abs=1e-300)


NO_ANSWER = {
    "softmax of nothing": lambda: foundations.softmax([]),
    "softmax where nothing is allowed": lambda: foundations.softmax([-math.inf, -math.inf]),
    "log-softmax where nothing is allowed": lambda: foundations.log_softmax([-math.inf, -math.inf]),
    "softmax below absolute zero": lambda: foundations.softmax([1.0, 2.0], temperature=-1),
    "cosine of zeros": lambda: foundations.cosine_similarity([0, 0], [1, 1]),
    "no distribution": lambda: foundations.entropy([0.5, 0.6]),
    "a negative probability": lambda: foundations.surprise(-0.1),
    "nothing can have happened": lambda: foundations.bayes([0.5, 0.5], [0.0, 0.0]),
    "no data": lambda: foundations.gaussian_maximum_likelihood([]),
    "a query that sees nothing": lambda: foundations.attention([[1.0]], [[1.0]], [[1.0]], mask=np.array([[False]])),
    "no keys": lambda: foundations.attention(np.ones((1, 2)), np.ones((0, 2)), np.ones((0, 2))),
    "zeros without ε": lambda: maths.RMSNorm(0.0)([[0.0, 0.0]], [1, 1]),
    "constants without ε": lambda: maths.LayerNorm(0.0)([[3.0, 3.0]], [1, 1], [0, 0]),
    "infinite weights": lambda: foundations.svd([[math.inf, 0.0]]),
    "a mass of nothing": lambda: foundations.top_p([0.5, 0.5], 0.0),
    "a base of one": lambda: foundations.entropy([0.5, 0.5], 1),
    "a group of one": lambda: alignment.group_advantages([[1.0]]),
    "infinity against infinity": lambda: foundations.dot([math.inf, 1.0], [0.0, 1.0]),
    "no bytes": lambda: foundations.bits_per_byte(1.0, 5, 0),
}


@pytest.mark.parametrize("name", NO_ANSWER)
def test_where_there_is_no_answer_the_error_says_so(name: str) -> None:
    with pytest.raises(LimpidError) as caught:
        NO_ANSWER[name]()
    assert len(str(caught.value)) > 20
