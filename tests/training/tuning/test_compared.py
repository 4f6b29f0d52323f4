"""A step of a tuned run beside TRL's own loss on the same rows: `limpid compare RUN RUN:trl`."""

from collections.abc import Callable
from typing import Any

import pytest

import limpid
from limpid.cli import main
from limpid.comparison import trl_losses
from limpid.errors import ConfigError
from limpid.run import Run

MOVED: dict[str, Any] = {"learning_rate": 0.02, "warmup_steps": 0, "schedule": "constant"}
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "sft": ("sft", {}, {"loss"}),
    "robust": ("dpo", {"loss_type": "robust", "label_smoothing": 0.1, "f_divergence_type": "js_divergence"},
               {"chosen_log_probabilities", "rejected_scores", "pair_losses", "loss"}),
    "kto": ("kto", {"desirable_weight": 0.7}, {"answer_losses", "loss"}),
    "reward": ("reward", {"center_rewards_coefficient": 0.1}, {"last_hidden", "chosen_rewards", "loss"}),
    "dapo": ("dapo", {"beta": 0.1, "temperature": 0.7}, {"tempered_logits", "ratios", "kl", "token_losses", "loss"}),
    "rloo": ("rloo", {}, {"ratios", "policy_losses", "loss"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_trls_but_for_rounding(tuned: Callable[..., Run], name: str) -> None:
    """The policy has left the reference, and the one that drew, when it is compared."""
    objective, options, names = CASES[name]
    model = {"lora_rank": 2} if name == "sft" else {}  # whose factors are added in
    run = tuned(objective, tune={"options": options}, update=MOVED, model=model)
    found = limpid.compare(run, f"{run}:trl")
    assert found.agrees, (found.verdict, found.first_disagreement)
    kinds = {kind: {one.name for one in found.differences if one.kind == kind} for kind in ("forward", "backward")}
    assert names <= kinds["forward"]
    assert {"embed.tokens.weight", "blocks.0.attention.query.weight"} <= kinds["backward"]


def test_another_loss_is_named_where_it_departs(tuned: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = tuned("dpo", update=MOVED)
    original = trl_losses.trainer
    monkeypatch.setattr(trl_losses, "trainer", lambda **options: original(**{**options, "beta": 0.2}))
    found = limpid.compare(run, f"{run}:trl", backward=False)
    assert found.first_disagreement.name == "pair_losses"
    assert found.outlier == 1


def test_what_has_no_counterpart_is_one_line(
    tuned: Callable[..., Run], base: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = tuned("sft")
    for words, said in (
        ((base, f"{base}:trl"), "was not tuned, and TRL has losses of tuning alone"),
        ((run, f"{run}:trl", "--text", "the cat"), "reads the rows of a step: leave out --text"),
        ((f"{run}:cached", f"{run}:trl"), "knows no loss but that of the next token"),
        ((run, f"{run.model_folder}:trl"), "is no run, and TRL's loss is that of a step: give a tuned run"),
    ):
        assert main(["compare", *map(str, words)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    other = tuned("dpo", "sum", tune={"options": {"loss_type": "ipo_sum"}})
    with pytest.raises(ConfigError, match=r"TRL 1.16 has no loss for loss_type ipo_sum: compare with :transformers"):
        limpid.compare(other, f"{other}:trl")
    monkeypatch.setattr(trl_losses.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="TRL's losses need trl: pip install"):
        limpid.compare(run, f"{run}:trl")
