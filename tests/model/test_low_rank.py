"""Low-rank factors beside linear maps: parameters like any other, in engine, mathematics and recorded step."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from limpid import maths
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.console import Console
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.generation.decoder import Decoder
from limpid.model import Transformer, initialise
from limpid.model.cache import Cache
from limpid.model.linear import LowRankLinear, merge
from limpid.objectives import NEXT_TOKEN
from limpid.quantities import parameters, quantities, trained_parameters
from limpid.tracing import Trace
from limpid.tracing.terminal import show
from limpid.tracing.verify import verify_step
from limpid.training.record import Observation, _beside, record_step
from limpid.training.state import fresh_state
from limpid.training.step import backward, step
from limpid.training.update import read_moments

PLAIN = ModelConfig(vocab_size=23, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, context_length=12)
DORA = {"use_dora": True, "attention_bias": True, "lora_scaling": "sqrt_rank"}
DROPPED = {"lora_dropout": 0.25}
KINDS = pytest.mark.parametrize(
    "model", [{}, DORA, DROPPED, DORA | DROPPED], ids=["lora", "dora", "lora, dropped", "dora, dropped"]
)
MODEL = replace(PLAIN, lora_rank=3, lora_alpha=6.0, lora_targets=("attention.*", "mlp.output"))


def configured(precision: str = "fp64", model: dict[str, object] | None = None, **run: object) -> TrainConfig:
    return TrainConfig(
        replace(MODEL, **(model or {})),
        update=UpdateConfig(warmup_steps=1),
        run=RunConfig(precision=precision, max_steps=6, batch_size=2, **run),
    )


def batch(number: int) -> list[MicroBatch]:
    tokens = torch.randint(0, 23, (2, 13), generator=torch.Generator().manual_seed(number)).numpy()
    return [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, (0, 1))]


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in model.named_parameters()}


def trained_model(**options: object) -> Transformer:
    """Factors that are not zero any more."""
    model = initialise(Transformer(replace(MODEL, **options)), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_b" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def test_only_factors_are_trained_and_as_many_as_published() -> None:
    """4.7 M for GPT-3's queries and values at rank 1 of each block. Source: Hu et al. 2021, table 4."""
    gpt3 = ModelConfig(vocab_size=50257, context_length=2048, d_model=12288, num_layers=96, num_heads=96, lora_rank=1,
                       lora_targets=("attention.query", "attention.value"), mlp="plain")  # fmt: skip
    factors = [one for one in parameters(gpt3) if one.trained]
    assert {name.rsplit(".", 2)[1] for name in (one.name for one in factors)} == {"lora_a", "lora_b"}
    assert sum(one.size for one in factors) == pytest.approx(4.7e6, rel=0.01)


@KINDS
@pytest.mark.parametrize("recomputed", ["off", "on"])
def test_a_step_moves_factors_as_in_the_mathematics(recomputed: str, model: dict) -> None:
    config = configured(model=model, gradient_checkpointing=recomputed)
    state = fresh_state(config)
    for number in (1, 2):  # the second step has B ≠ 0
        before = weights(state.model)
        moments = read_moments(state.model, state.optimizer, config.update)
        moments = {name: tensor.double().numpy().copy() for name, tensor in moments.items()}
        (micro,) = batch(number)
        observed = Observation()
        outcome = step(state, [micro], config, recorder=observed)
        masks = {name: kept.numpy() for name, (kept,) in observed.values.items() if name.startswith("kept(")}
        assert len(masks) == (10 if model.get("lora_dropout") else 0)  # five maps of two blocks
        ours = maths.step(before, moments, dict(micro.arrays) | masks, config, number)
        assert outcome.grad_norm == pytest.approx(ours.grad_norm, rel=1e-9)
        trained = {one.name for one in trained_parameters(config)}
        for name, after in weights(state.model).items():
            assert name in trained or np.array_equal(after, before[name]), name
            assert ".lora_b" not in name or not np.array_equal(after, before[name]), name
            np.testing.assert_allclose(ours.parameters[name], after, atol=1e-12)


def recorded(folder: Path, precision: str, **model: object) -> Path:
    config, path = configured(precision, model), folder / "step.safetensors"
    state = fresh_state(config)
    step(state, batch(1), config)
    record_step(path, state, batch(2), config, run="low rank", token_text=str)
    return path


@KINDS
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_opens(precision: str, model: dict, tmp_path: Path) -> None:
    report = verify_step(recorded(tmp_path, precision, **model))
    assert report.first_disagreement() is None
    assert set(report.update.rules) == {one.name for one in trained_parameters(configured(model=model))}


@pytest.mark.parametrize("model", [{}, DORA, {"lora_rank": 0, "lora_targets": ()}], ids=["lora", "dora", "neither"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_of_compiled_blocks_opens(
    precision: str, model: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if they were: what is inside them is compared on the plain path, its norms' gradients too."""
    whole = staticmethod(lambda block, x, *rest: block(x, *rest))
    monkeypatch.setattr(Transformer, "compile_blocks", lambda self: setattr(self, "compiled", whole))
    config, path = configured(precision, model, compile="on"), tmp_path / "step.safetensors"
    state = fresh_state(config)
    step(state, batch(1), config)
    record_step(path, state, batch(2), config, run="compiled", token_text=str)
    assert verify_step(path).first_disagreement() is None


@pytest.mark.parametrize("model", [{}, DORA, {"dropout": 0.3} | DROPPED], ids=["lora", "dora", "dropout"])
def test_what_a_compiled_block_never_shows_is_kept_of_the_plain_path(model: dict, tmp_path: Path) -> None:
    config = configured("fp32", model)
    state, plain = fresh_state(config), Observation()
    backward(state, batch(1), config, NEXT_TOKEN, "plain", plain.observe)
    formed = {name for name in plain.values if name.count(".") < 2}  # what lies outside blocks
    kept = _beside(plain, formed, batch(1), NEXT_TOKEN, config)
    inside = {one.name for one in quantities(config.model) if one.name.startswith("blocks.")}
    assert inside <= kept.values.keys()


def test_a_step_says_how_much_of_the_model_is_trained(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    show(Trace.open(recorded(tmp_path, "bf16")), console)
    shown = console.file.getvalue()
    trained = sum(math.prod(one.shape) for one in trained_parameters(configured()))
    assert (
        f"{sum(math.prod(one.shape) for one in parameters(MODEL)):,} parameters, {trained:,} of them trained" in shown
    )
    assert re.search(r"grad\(attention\.output\.lora_b\.weight\) \d", shown)


def test_a_length_that_is_differentiated_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact gradient, in the place of the one that takes lengths as constants."""
    original = LowRankLinear._brought_to

    def wrong(self: LowRankLinear, *given: object) -> torch.Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "detach", lambda tensor: tensor)
            return original(self, *given)

    (tmp_path / "wrong").mkdir()
    monkeypatch.setattr(LowRankLinear, "_brought_to", wrong)
    check = verify_step(recorded(tmp_path / "wrong", "fp32", **DORA)).first_disagreement()
    assert check is not None
    assert re.fullmatch(r"blocks\.1\.\S+\.lora_[ab]\.weight", check.name), check.name


def test_another_scale_is_found_where_it_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """alpha / √rank in the place of alpha / rank."""
    original = LowRankLinear.__init__

    def wrong(self: LowRankLinear, *given: object) -> None:
        original(self, *given)
        self.scale = MODEL.lora_alpha / MODEL.lora_rank**0.5

    monkeypatch.setattr(LowRankLinear, "__init__", wrong)
    check = verify_step(recorded(tmp_path, "bf16")).first_disagreement()
    assert check is not None
    assert check.name == "blocks.0.attention.query"


def test_with_b_zero_the_forward_pass_is_the_same_to_the_bit() -> None:
    model, plain = initialise(Transformer(MODEL), 0), Transformer(PLAIN)
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if ".lora_" not in n})
    tokens = torch.from_numpy(batch(1)[0]["tokens"])
    assert torch.equal(model.eval()(tokens), plain.eval()(tokens))


@pytest.mark.parametrize("options", [{}, DORA], ids=["lora", "dora"])
def test_added_in_and_beside_are_the_same_model_decoded_too(options: dict) -> None:
    model = trained_model(**options)
    config, merged = merge(model.config, model.double().state_dict())
    assert config == replace(PLAIN, attention_bias=bool(options))
    plain = Transformer(config, torch.float64).double()
    plain.load_state_dict(merged)
    model.compute = torch.float64
    tokens = torch.from_numpy(batch(1)[0]["tokens"])
    with torch.no_grad():
        beside = model(tokens)
        torch.testing.assert_close(beside, plain.eval()(tokens), rtol=0, atol=1e-12)
        cache = Cache(config, 2, 12, torch.float64, None)
        decoder = Decoder(model)
        decoder(tokens[:, :-1], cache)
        torch.testing.assert_close(decoder(tokens[:, -1:], cache)[:, -1], beside[:, -1], rtol=0, atol=1e-12)


def test_targets_that_are_no_linear_map_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"lora_targets names 'mlp\.gates', which no linear map is called: they are"):
        replace(PLAIN, lora_rank=2, lora_targets=("mlp.gates",))
    with pytest.raises(ConfigError, match="lora_rank is 0"):
        replace(PLAIN, lora_targets=("mlp.up",))
