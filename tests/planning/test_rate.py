"""Which learning rate: against a quadratic, whose largest stable rate is 2/λ, and on small models."""

import json
from pathlib import Path

import numpy as np
import pytest

from limpid.cli import main
from limpid.errors import ConfigError
from limpid.planning.rate import ABOVE, CLOSE, find_rate
from limpid.planning.rate_picture import draw, in_letters, lines


class Quadratic:
    """½ Σ λ x², whose steps against the gradient are known, with noise on what is measured."""

    def __init__(self, curvatures, noise: float = 0.0) -> None:
        self.curvatures, self.noise = np.asarray(curvatures, float), noise

    def rewind(self) -> None:
        self.rng = np.random.default_rng(1)
        self.x = np.ones(len(self.curvatures))

    def step(self, rate: float) -> float:
        loss = 0.5 * float((self.curvatures * self.x**2).sum()) + self.noise * self.rng.standard_normal()
        self.x = self.x * (1 - rate * self.curvatures)
        return loss


@pytest.mark.parametrize("curvatures", [[1.0], [10.0, 1.0, 0.1], np.geomspace(1e-3, 50, 30)], ids=len)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_largest_stable_rate_of_a_quadratic_is_two_over_its_largest_curvature(curvatures, noise: float) -> None:
    """Above 2/λ each step multiplies x by r = ηλ - 1; a trial of n steps shows it by n - ABOVE."""
    with np.errstate(over="ignore"):
        found = find_rate(Quadratic(curvatures, noise), 1e-5, 100.0, 200)
    limit = 2 / max(curvatures)
    share = max(curvatures) / sum(curvatures)  # of the loss at the start, in the direction that grows
    seen = (1 / share + 3 * noise) ** (1 / (2 * (found.stable_steps - ABOVE)))  # r that is noticed
    assert limit / CLOSE <= found.stable <= limit * (1 + seen) / 2
    assert found.unstable >= limit
    assert found.unstable / found.stable <= CLOSE


def test_the_steepest_point_lies_where_the_loss_falls_and_is_suggested() -> None:
    found = find_rate(Quadratic([10.0, 1.0, 0.1]), 1e-5, 100.0, 200)
    assert found.steepest < found.suggested < found.lowest  # in the middle of the fall
    assert len(found.rates) < 200
    said = "\n".join(lines(found))
    assert f"--learning-rate {found.suggested:.2g}" in said


def test_a_curve_without_an_answer_says_so_and_what_would_give_one() -> None:
    flat = find_rate(Quadratic([0.0], noise=0.1), 1e-5, 100.0, 200)
    assert flat.suggested is None
    assert "nowhere falls by more than its scatter" in flat.notes()[0]
    assert "every rate up to 1e+02 is stable: raise --highest" in flat.notes()[1]
    with np.errstate(over="ignore"):
        too_high = find_rate(Quadratic([1.0]), 2.5, 3.0, 30)
    assert too_high.stable is None
    assert "lower --lowest" in too_high.notes()[-1]


def test_the_interval_of_the_mean_holds_the_truth() -> None:
    """Of losses that are noise around 0, about as often as it says."""
    found = find_rate(Quadratic([0.0], noise=1.0), 1e-5, 1.0, 400)
    assert 0.85 < float(((found.low < 0) & (found.high > 0)).mean()) <= 1.0


@pytest.mark.parametrize(
    ("lowest", "highest", "steps", "said"),
    [(1.0, 0.1, 100, "rates have to rise"), (0.1, 1.0, 5, "are the fewest that show a slope")],
)
def test_what_cannot_be_swept_is_refused(lowest: float, highest: float, steps: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_rate(Quadratic([1.0]), lowest, highest, steps)


def test_pictures_are_drawn(tmp_path: Path) -> None:
    found = find_rate(Quadratic([1.0, 0.1]), 1e-4, 10.0, 60)
    assert draw(found, tmp_path / "rate.svg").read_text().startswith("<?xml")
    assert "log10 rate" in in_letters(found, 80, 12, coloured=False)


SMALL = (
    "--tokenizer bytes --context-length 8 --d-model 12 --num-layers 1 --num-heads 2 --batch-size 4 --threads 1 "
    "--sweep-steps 27 --highest 30"
)


@pytest.mark.parametrize(
    "options",
    ["--optimizer adamw --precision fp32", "--optimizer muon --precision fp16 --lora-rank 2 --frozen embed.*"],
)
def test_the_verb_keeps_nothing_but_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("the cat sees the dog, and the dog sees the bird\n" * 30)
    code = main(["plan", "rate", "text.txt", *SMALL.split(), *options.split(), "-o", "rate.png", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == (document["suggested"] is None)
    assert len(document["rates"]) == len(document["losses"]) <= 27
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "rate.png", "text.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--learning-rate 1", "plan rate tries rates by itself: leave out --learning-rate"),
        ("--max-steps 9", "leave out --max-steps"),
        ("-o rate.pdf", "expected a name that ends in .png or .svg"),
        ("--lowest 3 --highest 2", "rates have to rise"),
        ("--sweep-steps 1", "--sweep-steps is 1: 27 are the fewest"),
    ],
)
def test_what_it_does_not_take_is_one_line(options: str, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    assert main(["plan", "rate", "no such text", *SMALL.split(), *options.split()]) == 2
    assert said in capsys.readouterr().err


def test_several_processes_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    from limpid.config import TrainConfig
    from limpid.training.mesh import Mesh
    from limpid.training.rate_sweep import rate_curve

    monkeypatch.setattr("limpid.training.rate_sweep.open_mesh", lambda: nullcontext(Mesh(world=2)))
    with pytest.raises(
        ConfigError, match="limpid plan rate needs one process, and there are 2: start it without torchrun"
    ):
        rate_curve(TrainConfig(), 1e-6, 1.0, 50)
