"""Calibration: what chance does, what the interval holds, what is drawn."""

import numpy as np
import pytest
from tests.evaluation.small_models import TEXT, small_model

from limpid.evaluation.calibration import binned, calibration, unfolded_gap
from limpid.evaluation.evaluation import EvaluationConfig, TextResult
from limpid.evaluation.metrics import metrics
from limpid.evaluation.plots import reliability
from limpid.evaluation.scored_text import ScoredText, encode_documents, score_text
from limpid.evaluation.token_scores import TokenScores
from limpid.reporter import SILENT


def drawn(rng: np.random.Generator, count: int, power: float) -> tuple[ScoredText, np.ndarray]:
    """A model whose likeliest token comes with other odds than it says; power 1 is calibrated."""
    p = np.maximum(1 / (1 + np.exp(-1.5 * rng.standard_normal(count))), 0.02)
    q = p**power / (p**power + (1 - p) ** power)
    zero = np.zeros(count, np.float32)
    scores = TokenScores(zero, zero, p.astype(np.float32), (rng.random(count) < q).astype(np.float32), zero)
    ends = np.arange(1, count + 1)
    one = small_model()
    return ScoredText(one, EvaluationConfig().windows(one), scores, ends, np.ones_like(ends), ends[-1:], count), q


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_the_corrected_error_s_interval_holds_the_true_error(power: float) -> None:
    rng = np.random.default_rng(0)
    large, q = drawn(rng, 400_000, power)
    p = large.scores.confidence
    truth = 0.0 if power == 1 else sum(len(m) * abs((q[m] - p[m]).mean()) for m in binned(p)) / len(p)
    held, plain, corrected, chance = 0, [], [], []
    for seed in range(60):
        scored, _ = drawn(rng, 3000, power)
        found = calibration(scored, scored.blocks(), 0.95, seed)
        held += found.corrected.low <= truth <= found.corrected.high
        plain.append(found.error)
        corrected.append(found.corrected.value)
        chance.append(found.chance)
    assert held >= 54
    assert abs(np.mean(corrected) - truth) < abs(np.mean(plain) - truth)
    if power == 1:  # a calibrated model shows what chance makes, on average
        assert np.mean(plain) == pytest.approx(np.mean(chance), rel=0.05)


def test_bins_are_of_equal_mass_and_keep_ties_together() -> None:
    sizes = [len(part) for part in binned(np.random.default_rng(0).random(1500))]
    assert sizes == [100] * 15
    tied = np.array([0.5] * 90 + [0.9] * 10)
    assert sorted(len(part) for part in binned(tied)) in ([10, 90], [100])
    assert [len(part) for part in binned(np.array([0.3]))] == [1]


def test_noise_is_taken_out_of_a_gap_as_it_came_in() -> None:
    rng = np.random.default_rng(1)
    for delta in (0.01, 0.05):
        folded = np.abs(delta + 0.02 * rng.standard_normal(10**6)).mean()
        assert unfolded_gap(folded, 0.02) == pytest.approx(delta, abs=2e-4)
    assert unfolded_gap(0.01, 0.02) == 0
    assert unfolded_gap(0.3, 0.0) == 0.3


def test_a_reading_is_drawn(tmp_path) -> None:
    one = small_model()
    scored = score_text(one, encode_documents(one, [TEXT], SILENT), EvaluationConfig().windows(one), SILENT)
    blocks = scored.blocks()
    result = TextResult(scored, blocks, metrics(scored, blocks, 0.95, 0), calibration(scored, blocks, 0.95, 0))
    from matplotlib.image import imread

    pixels = imread(reliability((result, result), tmp_path / "r.png"))
    assert not (pixels == pixels[:1, :1]).all()
