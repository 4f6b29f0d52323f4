"""How a run is computed is settled before it starts, said with its reason, and changes no result beyond rounding."""

import dataclasses

import pytest
import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig, TuneConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.training import autotune, precision
from limpid.training.state import fresh_state
from limpid.training.step import step

CPU = torch.device("cpu")


def configured(**run: object) -> TrainConfig:
    model = ModelConfig(vocab_size=61, d_model=32, num_layers=3, num_heads=4, num_kv_heads=2, context_length=24)
    return TrainConfig(model, run=RunConfig(precision="fp32", max_steps=6, batch_size=3, **run))


def losses(config: TrainConfig) -> list[float]:
    generator = torch.Generator().manual_seed(5)
    state, found = fresh_state(config), []
    for _ in range(4):
        tokens = torch.randint(0, config.model.vocab_size, (3, config.model.context_length + 1), generator=generator)
        found.append(
            step(
                state,
                [MicroBatch({"tokens": tokens[:, :-1].numpy(), "targets": tokens[:, 1:].numpy()}, (0, 1, 2))],
                config,
            ).loss
        )
    return found


@pytest.mark.usefixtures("unchecked")  # the compiler does not trace the checker
def test_compiled_blocks_train_alike() -> None:
    plain, compiled = losses(configured()), losses(configured(compile="on"))
    assert compiled == pytest.approx(plain, rel=2e-6)
    assert compiled[-1] != compiled[0]


def test_activations_computed_again_train_bit_for_bit_alike() -> None:
    assert losses(configured(gradient_checkpointing="on")) == losses(configured())


def test_activations_computed_again_are_not_kept() -> None:
    """What autograd keeps between forward and backward does not grow with what a block keeps."""

    def kept(config: TrainConfig) -> int:
        model, held = fresh_state(config).model.train(), []
        tokens = torch.zeros(4, config.model.context_length, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x.nbytes) or x, lambda x: x):
            model.hidden(tokens)
        return sum(held)

    assert kept(configured(gradient_checkpointing="on")) < kept(configured()) / 5


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ([900, 200], "bf16"),
        ([250, 200, 900, 200], "bf16"),
        ([250, 200, 260, 200, 240, 200], "fp32"),
        ([50, 200], "fp32"),
    ],
)
def test_a_gain_of_bf16_that_is_near_the_limit_is_measured_again(
    rates: list[int], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(rates)
    monkeypatch.setattr(precision, "_peak", lambda dtype, device: next(left))
    precision.measured_peak.cache_clear()
    assert precision.resolve("auto", CPU) == chosen
    assert not list(left)
    precision.measured_peak.cache_clear()


def test_a_short_run_is_not_compiled_and_says_why() -> None:
    settled = autotune.resolve_auto(configured(), CPU)
    assert settled.run.compile == "off"
    (blocks,) = [choice for choice in autotune.decisions(configured(), CPU) if choice.part == "blocks"]
    assert "would save" in blocks.why


def test_a_long_run_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.shutil, "which", lambda name: f"/usr/bin/{name}")
    long = dataclasses.replace(configured(), run=dataclasses.replace(configured().run, max_steps=10**9))
    assert autotune.resolve_auto(long, CPU).run.compile == "on"


def test_without_a_compiler_auto_goes_without_and_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.shutil, "which", lambda name: None)
    long = dataclasses.replace(configured(), run=dataclasses.replace(configured().run, max_steps=10**9))
    assert autotune.resolve_auto(long, CPU).run.compile == "off"
    with pytest.raises(ConfigError, match=r"g\+\+"):
        autotune.resolve_auto(configured(compile="on"), CPU)


def test_masks_of_dropout_are_never_compiled() -> None:
    config = dataclasses.replace(configured(), model=dataclasses.replace(configured().model, dropout=0.1))
    with pytest.raises(ConfigError, match="dropout"):
        autotune.resolve_auto(dataclasses.replace(config, run=dataclasses.replace(config.run, compile="on")), CPU)


def test_activations_are_computed_again_only_where_memory_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert autotune.resolve_auto(configured(), CPU).run.gradient_checkpointing == "off"
    monkeypatch.setattr(autotune, "available_bytes", lambda device: 100_000)
    assert autotune.resolve_auto(configured(), CPU).run.gradient_checkpointing == "on"
    (activations,) = [choice for choice in autotune.decisions(configured(), CPU) if choice.part == "activations"]
    assert "0.0 GB may be used" in activations.why
    assert autotune.resolve_auto(configured(gradient_checkpointing="off"), CPU).run.gradient_checkpointing == "off"


def launched(monkeypatch: pytest.MonkeyPatch, config: TrainConfig, gigabytes: float = 80) -> autotune.Decision:
    """What is said of launches on a GPU that is pretended."""
    monkeypatch.setattr(autotune, "available_bytes", lambda device: gigabytes * 1e9)
    monkeypatch.setattr(autotune, "measured_peak", lambda dtype, device: 5e14)
    (found,) = [one for one in autotune.decisions(config, torch.device("cuda")) if one.part == "launches"]
    assert autotune.decide_launches(config, torch.device("cuda"))[0] == ("graph" in found.chosen)
    return found


def test_on_a_gpu_a_micro_batch_is_launched_as_a_whole_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(compile="off")
    assert "CUDA graph" in launched(monkeypatch, config).chosen
    dropping = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.1))
    assert "masks" in launched(monkeypatch, dropping).why
    assert "0.0 GB may be used" in launched(monkeypatch, config, gigabytes=1e-3).why
    tuned = dataclasses.replace(config, tune=TuneConfig("sft"))
    assert "differ in length" in launched(monkeypatch, tuned).why
    assert "2 processes" in autotune.decide_launches(config, torch.device("cuda"), 2)[1]
    assert not autotune.decide_launches(config, CPU)[0]


def test_every_decision_is_explained() -> None:
    parts = [choice.part for choice in autotune.decisions(configured(), CPU)]
    assert parts == ["precision", "attention", "blocks", "activations", "loss", "update"]
    assert all(choice.chosen and choice.why for choice in autotune.decisions(configured(), CPU))
