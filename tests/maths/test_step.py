"""The step as mathematics beside the engine's, in float64: two derivations that share nothing but names."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from limpid import maths
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.maths.schedule import learning_rate_rounding
from limpid.maths.step import forward
from limpid.quantities import parameters, quantities
from limpid.training.record import Observation
from limpid.training.state import fresh_state
from limpid.training.step import backward
from limpid.training.step import step as engine_step
from limpid.training.update import read_moments

SMALL = {"vocab_size": 13, "context_length": 7, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 17}
VARIANTS: dict[str, dict] = {
    "llama": {},
    "shared keys in a window": {
        "num_heads": 6, "d_head": 2, "num_kv_heads": 2, "attention_window": 3, "windowed_blocks": (1,),
    },
    "gpt-2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
    "the paper's": {
        "norm": "layer", "norm_placement": "post", "positions": "sinusoidal", "mlp": "plain", "activation": "relu",
    },
    "qwen3": {"qk_norm": True, "tied": False, "d_head": 6},
    "interleaved, stretched": {"rotary_layout": "interleaved", "rotary_scaling": "llama3", "rotary_factor": 2.0},
    "yarn": {"rotary_scaling": "yarn", "rotary_factor": 2.0, "rotary_low": 1.0, "rotary_high": 32.0},
    "squared relu, nowhere": {"positions": "none", "mlp": "plain", "activation": "relu2", "num_kv_heads": 1},
    "geglu": {"activation": "gelu", "attention_bias": True},
    "dropout": {"dropout": 0.3, "positions": "learned"},
}  # fmt: skip
RULES = ("adamw", "adam", "momentum", "sgd")


def configuration(variant: str, rule: str = "adamw") -> TrainConfig:
    return TrainConfig(
        ModelConfig(**(SMALL | VARIANTS[variant])),
        update=UpdateConfig(optimizer=rule, max_grad_norm=0.7, warmup_steps=2),
        run=RunConfig(max_steps=9, batch_size=3, precision="fp64", threads=1),
    )


def batches(config: TrainConfig) -> list[MicroBatch]:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, config.model.vocab_size, (9, 3, config.model.context_length + 1))
    targets = np.where(rng.random(tokens[..., 1:].shape) < 0.2, -100, tokens[..., 1:])
    return [MicroBatch({"tokens": t[:, :-1], "targets": y}, (0,)) for t, y in zip(tokens, targets, strict=True)]


def numpy(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def close(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_quantity_and_every_gradient_equals_the_engines(variant: str) -> None:
    config = configuration(variant)
    state, micro = fresh_state(config), batches(config)[0]
    seen = Observation()
    backward(state, [micro], config, path="plain", observe=seen.observe)
    theirs = numpy(seen.tensors("plain"))
    kept = {name.removeprefix("batch/"): mask for name, mask in theirs.items() if name.startswith("batch/")}
    batch = {"tokens": micro["tokens"], "targets": micro["targets"], **kept}
    ours = maths.step(numpy(dict(state.model.named_parameters())), numpy(moments(state, config)), batch, config, 1)
    names = [quantity.name for quantity in quantities(config.model)]
    assert [link.name for link in ours.chain.links] == names
    for name in names:
        close(ours.chain.values[name], theirs[f"plain/{name}"], name)
        if f"plain/grad({name})" in theirs:
            close(ours.gradients[name], theirs[f"plain/grad({name})"], f"grad({name})")
    for name, parameter in state.model.named_parameters():
        close(ours.gradients[name], parameter.grad.numpy(), f"grad({name})")


def moments(state, config: TrainConfig) -> dict[str, torch.Tensor]:
    return read_moments(state.model, state.optimizer, config.update)


@pytest.mark.parametrize(("variant", "rule"), [*itertools.product(["llama", "gpt-2"], RULES), ("the paper's", "adamw")])
def test_nine_steps_equal_the_engines(variant: str, rule: str) -> None:
    config = configuration(variant, rule)
    state = fresh_state(config)
    ours, memory = numpy(dict(state.model.named_parameters())), numpy(moments(state, config))
    for number, micro in enumerate(batches(config), 1):
        outcome = engine_step(state, [micro], config)
        step = maths.step(ours, memory, {"tokens": micro["tokens"], "targets": micro["targets"]}, config, number)
        ours, memory = step.parameters, step.moments
        assert step.loss == pytest.approx(outcome.loss, rel=1e-11)
        assert step.grad_norm == pytest.approx(outcome.grad_norm, rel=1e-10)
        departure = abs(step.learning_rate - outcome.learning_rate)
        assert departure <= learning_rate_rounding(number, config.run.max_steps, config.update)
    for name, parameter in state.model.named_parameters():
        close(ours[name], parameter.detach().numpy(), name)
    for name, moment in moments(state, config).items():
        close(memory[name], moment.numpy(), name)


@pytest.mark.parametrize("variant", ["llama", "gpt-2", "geglu", "qwen3"])
def test_the_whole_backward_pass_belongs_to_the_forward_pass(variant: str) -> None:
    """Along a random direction in the space of all parameters, without any engine."""
    config = configuration(variant)
    rng = np.random.default_rng(2)
    weights = {p.name: 0.3 * rng.standard_normal(p.shape) + (p.init == "ones") for p in parameters(config.model)}
    direction = {name: rng.standard_normal(weight.shape) for name, weight in weights.items()}
    micro = batches(config)[0]

    def loss(t: float) -> tuple[float, maths.Chain]:
        moved = {name: weight + t * direction[name] for name, weight in weights.items()}
        chain = maths.Chain({**moved, "tokens": micro["tokens"], "targets": micro["targets"]})
        return float(chain.values[forward(chain, config.model)]), chain

    h = 1e-4
    along = (8 * (loss(h)[0] - loss(-h)[0]) - (loss(2 * h)[0] - loss(-2 * h)[0])) / (12 * h)
    _, chain = loss(0.0)
    gradients = chain.backward("loss")
    assert sum(np.vdot(gradients[name], v) for name, v in direction.items()) == pytest.approx(along, rel=1e-7)


def test_thirty_steps_on_one_batch_learn_it_by_heart() -> None:
    config = configuration("llama")
    config = dataclasses.replace(
        config,
        update=dataclasses.replace(config.update, learning_rate=0.03),
        run=RunConfig(max_steps=30, precision="fp64"),
    )
    state, micro = fresh_state(config), batches(config)[0]
    ours, memory = numpy(dict(state.model.named_parameters())), numpy(moments(state, config))
    batch = {"tokens": micro["tokens"], "targets": micro["targets"]}
    losses = []
    for number in range(1, 31):
        step = maths.step(ours, memory, batch, config, number)
        ours, memory = step.parameters, step.moments
        losses.append(step.loss)
    assert losses[0] == pytest.approx(np.log(13), rel=0.05)
    assert losses[-1] < 0.3 * losses[0]


def test_no_token_sees_a_later_one() -> None:
    config = configuration("llama")
    state, micro = fresh_state(config), batches(config)[0]
    weights = numpy(dict(state.model.named_parameters()))
    tokens = micro["tokens"].copy()
    tokens[:, 4] = (tokens[:, 4] + 1) % 13

    def logits(tokens: np.ndarray) -> np.ndarray:
        chain = maths.Chain({**weights, "tokens": tokens})
        return chain.values[maths.transformer(chain, config.model)]

    before, after = logits(micro["tokens"]), logits(tokens)
    assert np.array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4], after[:, 4])
