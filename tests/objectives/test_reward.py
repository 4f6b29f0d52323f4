"""Reward models through the whole seam: engine, mathematics, TRL, Hugging Face, recorded steps."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.objectives.recorded_objective import CONFIG, at, moved, opens, record

import limpid
from limpid import maths
from limpid.comparison import trl_losses
from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.errors import CheckpointError, ConfigError
from limpid.model.convert import load_folder
from limpid.model.export import save_folder
from limpid.model.transformer import Transformer
from limpid.objectives import Reward, from_document, to_document
from limpid.objectives.reward import rewards
from limpid.quantities import SCORE
from limpid.tracing.verify import verify_step
from limpid.training.state import State, fresh_state
from limpid.training.step import backward, step

RATING = replace(CONFIG, model=replace(CONFIG.model, head="score"))
OBJECTIVES = {
    "plain": Reward(),
    "margin": Reward(margin=True),
    "centred": Reward(margin=True, center_rewards_coefficient=0.01),
}
EVERY = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def drawn(state: State, seed: int, count: int = 2) -> MicroBatch:
    """Chosen, rejected, chosen, …, of several lengths."""
    rng = np.random.default_rng(seed)
    arrays = {
        "tokens": rng.integers(0, 19, (2 * count, 9)), "last": rng.integers(3, 9, 2 * count),
        "margin": rng.random(count).astype(np.float32),
    }  # fmt: skip
    return MicroBatch(arrays, tuple(range(2 * count)))


def test_scores_all_alike_lose_ln_2() -> None:
    state = fresh_state(RATING)
    with torch.no_grad():
        state.model.score.weight.zero_()
    first = step(state, [drawn(state, 1)], RATING, OBJECTIVES["plain"])
    assert first.loss == pytest.approx(math.log(2), rel=1e-12)
    second = step(state, [drawn(state, 1)], RATING, OBJECTIVES["plain"])
    assert second.loss < first.loss
    assert second.metrics["margin"] > 0


@EVERY
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_every_gradient_is_the_mathematics(objective: Reward, path: str) -> None:
    state = fresh_state(RATING)
    micro, weights = drawn(state, 1), moved(state)
    (loss,) = backward(state, [micro], RATING, objective, path)
    chain = maths.Chain({**weights, **micro.arrays})
    ours = chain.backward(objective.chain(chain, RATING.model))
    assert [link.name for link in chain.links] == [one.name for one in objective.quantities(RATING.model)]
    assert float(loss.value) == pytest.approx(float(chain.values["loss"]), rel=1e-12)
    for name, parameter in state.model.named_parameters():
        found, size = parameter.grad.numpy(), np.abs(ours[name]).max()
        np.testing.assert_allclose(found, ours[name], rtol=0, atol=1e-12 * size, err_msg=name)


@EVERY
def test_beside_trl(objective: Reward) -> None:
    config = at("fp32", RATING)
    state = fresh_state(config)
    micro, _ = drawn(state, 1, 3), moved(state)
    with torch.no_grad():
        scores = rewards(state.model, *(torch.as_tensor(micro[name]) for name in ("tokens", "last")))
    outcome = step(state, [micro], config, objective)
    order = torch.tensor([0, 2, 4, 1, 3, 5])  # TRL's: all chosen answers, then all rejected ones
    margin = {"margin": torch.as_tensor(micro["margin"])} if objective.margin else {}
    inputs = {"attention_mask": torch.ones(6, 9), **margin}
    trainer = trl_losses.trainer(args=trl_losses.SimpleNamespace(
        center_rewards_coefficient=objective.center_rewards_coefficient or None
    ))  # fmt: skip
    theirs = trl_losses.method("reward_trainer.py", "compute_loss")(
        trainer, lambda **_: trl_losses.SimpleNamespace(logits=scores[order, None]), inputs
    )
    assert outcome.loss == pytest.approx(theirs.item(), rel=1e-6)
    logged = trl_losses.metrics(trainer)
    assert {name: logged[name] for name in outcome.metrics} == pytest.approx(dict(outcome.metrics), rel=2e-6, abs=1e-6)


def test_micro_batches_add_up_to_the_step() -> None:
    objective, whole, parts = OBJECTIVES["centred"], fresh_state(RATING), fresh_state(RATING)
    one, other = drawn(whole, 1, 1), drawn(whole, 2, 3)
    joined = MicroBatch({name: np.concatenate([one[name], other[name]]) for name in objective.fields})
    first, second = step(whole, [joined], RATING, objective), step(parts, [one, other], RATING, objective)
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-9)
    assert dict(first.metrics) == pytest.approx(dict(second.metrics), abs=1e-12)


@EVERY
def test_records_name_the_objective(objective: Reward) -> None:
    assert from_document(to_document(objective)) == objective


@pytest.mark.parametrize(
    ("name", "precision", "parts"), [("plain", "bf16", 2), ("margin", "fp32", 1), ("centred", "fp16", 1)]
)
def test_a_recorded_step_opens_and_agrees(name: str, precision: str, parts: int, tmp_path: Path) -> None:
    file = record(tmp_path, OBJECTIVES[name], drawn, precision, parts, RATING)
    assert verify_step(file).first_disagreement() is None


def test_everything_that_its_step_computed_is_explained(tmp_path: Path) -> None:
    opens(record(tmp_path, OBJECTIVES["centred"], drawn, "fp32", 1, RATING))


def test_a_score_read_one_token_early_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import limpid.objectives.reward as room

    monkeypatch.setattr(room, "rewards", lambda model, tokens, last, mode: rewards(model, tokens, last - 1, mode))
    check = verify_step(record(tmp_path, OBJECTIVES["plain"], drawn, "bf16", 1, RATING)).first_disagreement()
    assert check is not None
    assert check.name == "last_hidden"


def test_low_rank_factors_leave_the_head_trained() -> None:
    config = replace(RATING, model=replace(RATING.model, lora_rank=2))
    state = fresh_state(config)
    trained = {name for name, parameter in state.model.named_parameters() if parameter.requires_grad}
    assert SCORE in trained
    assert all(".lora_" in name for name in trained - {SCORE})


def test_a_reward_model_predicts_no_token() -> None:
    model, tokens = Transformer(RATING.model), torch.zeros(2, 4, dtype=torch.long)
    state = fresh_state(RATING)
    for refused in (
        lambda: model(tokens),
        lambda: step(state, [MicroBatch({"tokens": np.zeros((2, 4), int), "targets": np.zeros((2, 4), int)})], RATING),
    ):
        with pytest.raises(CheckpointError, match="is a reward model: its head gives one score and predicts no token"):
            refused()
    with pytest.raises(CheckpointError, match="predicts tokens and gives no score"):
        rewards(Transformer(CONFIG.model), tokens, torch.zeros(2, dtype=torch.long))


FAMILIES = {
    "llama": {},
    "qwen2": {"attention_bias": True, "tied": False},
    "qwen3": {"qk_norm": True, "d_head": 4},
    "mistral": {"attention_window": 4},
    "gpt2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh", "attention_bias": True,
        "attention_output_bias": True, "mlp_bias": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_gives_the_same_scores(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    config: TrainConfig = at("fp32", replace(RATING, model=replace(RATING.model, **FAMILIES[family])))
    state = fresh_state(config)
    model, micro = state.model.eval(), drawn(state, 1)
    tokens, last = (torch.as_tensor(micro[name]) for name in ("tokens", "last"))
    tokens = (tokens % 18).masked_fill(torch.arange(9) > last[:, None], 18)  # 18 is padding
    save_folder(tmp_path / "hf", config.model, model.state_dict(), tokenizer_json=None, end_of_text=18)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__.endswith("ForSequenceClassification")
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=(tokens != 18).long()).logits.squeeze(-1)
        torch.testing.assert_close(rewards(model, tokens, last), expected, rtol=1e-5, atol=1e-6)
    theirs.save_pretrained(tmp_path / "theirs")
    back, weights = load_folder(tmp_path / "theirs")
    assert back.head == "score"
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter), name


def test_what_needs_a_vocabulary_says_so_at_once(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    config = at("fp32", replace(RATING, model=replace(RATING.model, vocab_size=tokenizer.vocab_size)))
    weights = fresh_state(config).model.state_dict()
    save_folder(tmp_path / "hf", config.model, weights, tokenizer_json=tokenizer.to_json(), end_of_text=None)
    assert limpid.load(tmp_path / "hf")[0].config.head == "score"
    for refused in (
        lambda: limpid.generate(tmp_path / "hf", "a"),
        lambda: limpid.evaluate(tmp_path / "hf", text="a"),
        lambda: limpid.inspect(tmp_path / "hf", "a"),
    ):
        with pytest.raises(CheckpointError, match="predicts no token"):
            refused()
    with pytest.raises(ConfigError, match="head score"):
        limpid.export(tmp_path / "hf", tmp_path / "model.gguf")
