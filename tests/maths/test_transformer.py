"""The reference beside transformers' models in float64, and against its own derivative."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from limpid import maths
from limpid.config import ModelConfig
from limpid.quantities import parameters, quantities

Arrays = dict[str, np.ndarray]


class Double(TorchFunctionMode):
    """transformers forms norms, angles and softmaxes in float32 whatever the model's format: here in float64."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        def wider(argument: Any) -> Any:
            return torch.float64 if argument is torch.float32 else argument

        if function is torch.Tensor.float:
            return args[0].double()
        return function(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


SIZES = {
    "vocab_size": 31, "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "attn_implementation": "eager",
}  # fmt: skip
OURS = {
    "vocab_size": 31, "d_model": 24, "d_ff": 37, "num_layers": 3, "num_heads": 6, "num_kv_heads": 2,
    "context_length": 64, "tied": False,
}  # fmt: skip
GPT2 = {
    "vocab_size": 31, "n_embd": 24, "n_inner": 37, "n_layer": 3, "n_head": 6, "n_positions": 64,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    "attn_implementation": "eager",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 2.0, "beta_slow": 0.5,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}


def from_llama(theirs: Arrays, config: ModelConfig) -> Arrays:
    """Llama's names, which Mistral and Qwen 3 share."""
    ours = {"embed.tokens": "embed_tokens", "final_norm": "norm"}
    for i in range(config.num_layers):
        sublayers = {
            "norm1": "input_layernorm", "norm2": "post_attention_layernorm",
            "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj", "attention.output": "self_attn.o_proj",
            "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm",
            "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.output": "mlp.down_proj",
        }  # fmt: skip
        ours |= {f"blocks.{i}.{our}": f"layers.{i}.{their}" for our, their in sublayers.items()}
    found = {
        f"{our}.{kind}": theirs[f"model.{their}.{kind}"]
        for our, their in ours.items()
        for kind in ("weight", "bias")
        if f"model.{their}.{kind}" in theirs
    }
    return found | ({} if config.tied else {"logits.weight": theirs["lm_head.weight"]})


def from_gpt2(theirs: Arrays, config: ModelConfig) -> Arrays:
    """GPT-2 keeps its matrices transposed, and query, key and value in one."""
    ours = {
        "embed.tokens.weight": theirs["transformer.wte.weight"],
        "embed.positions.weight": theirs["transformer.wpe.weight"],
    }
    for kind in ("weight", "bias"):
        ours[f"final_norm.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
        for i in range(config.num_layers):
            at = f"transformer.h.{i}."
            for our, their in (("norm1", "ln_1"), ("norm2", "ln_2")):
                ours[f"blocks.{i}.{our}.{kind}"] = theirs[f"{at}{their}.{kind}"]
            joined = np.split(theirs[f"{at}attn.c_attn.{kind}"], 3, axis=-1)
            for our, part in zip(("query", "key", "value"), joined, strict=True):
                ours[f"blocks.{i}.attention.{our}.{kind}"] = part.T
            for our, their in (
                ("attention.output", "attn.c_proj"),
                ("mlp.up", "mlp.c_fc"),
                ("mlp.output", "mlp.c_proj"),
            ):
                ours[f"blocks.{i}.{our}.{kind}"] = theirs[f"{at}{their}.{kind}"].T
    return ours


@dataclass(frozen=True)
class Published:
    """A model of transformers, and the same one in our words."""

    model: Callable[[], torch.nn.Module]
    config: ModelConfig
    weights: Callable[[Arrays, ModelConfig], Arrays] = from_llama


def llama(ours: dict[str, Any], **theirs: Any) -> Published:
    return Published(
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5, **theirs)), ModelConfig(**OURS, **ours)
    )


def stretched(scaling: str, theirs: dict[str, Any], **ours: Any) -> Published:
    """Five pairs of features: some kept, some stretched, some between."""
    ours |= {"rotary_scaling": scaling, "rotary_factor": theirs["factor"], "rotary_base": 500.0, "d_head": 10}
    return llama(ours, rope_parameters=theirs, head_dim=10)


PUBLISHED = {
    "llama": llama({}),
    "llama, tied": Published(
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5, tie_word_embeddings=True)),
        ModelConfig(**(OURS | {"tied": True})),
    ),
    "llama, biases": llama(
        {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}, attention_bias=True, mlp_bias=True
    ),
    "llama, wide heads": llama({"d_head": 10}, head_dim=10),
    "llama, exact gelu": llama({"activation": "gelu"}, hidden_act="gelu"),
    "llama, linear": stretched("linear", LINEAR),
    "llama, llama3": stretched("llama3", LLAMA3),
    "llama, yarn": stretched("yarn", YARN, rotary_low=0.5, rotary_high=2.0),
    "mistral": Published(
        lambda: MistralForCausalLM(MistralConfig(**SIZES, rms_norm_eps=1e-5, sliding_window=5)),
        ModelConfig(**OURS, attention_window=5),
    ),
    "qwen 3": Published(
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, rms_norm_eps=1e-5, head_dim=8)),
        ModelConfig(**OURS, qk_norm=True, d_head=8),
    ),
    "gpt-2": Published(
        lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
        ModelConfig(
            **(OURS | {"num_kv_heads": 6, "tied": True}), norm="layer", positions="learned", mlp="plain",
            activation="gelu_tanh", attention_bias=True, attention_output_bias=True, mlp_bias=True,
        ),
        from_gpt2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_loss_and_gradients_equal_transformers(name: str) -> None:
    published = PUBLISHED[name]
    config = published.config
    torch.manual_seed(0)
    tokens, targets = np.random.default_rng(0).integers(0, config.vocab_size, (2, 3, 17))
    with Double():
        model = published.model().double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        logits = model(torch.tensor(tokens)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
        loss.backward()
    theirs = dict(model.named_parameters())
    weights = published.weights({key: weight.detach().numpy() for key, weight in theirs.items()}, config)
    bars = published.weights({key: weight.grad.numpy() for key, weight in theirs.items()}, config)
    assert set(weights) == {parameter.name for parameter in parameters(config)}

    chain = run({**weights, "tokens": tokens, "targets": targets}, config)
    np.testing.assert_allclose(chain.values["logits"], logits.detach().numpy(), rtol=1e-10, atol=1e-10)
    assert chain.values["loss"] == pytest.approx(loss.item(), rel=1e-12)
    gradients = chain.backward("loss")
    largest = max(np.abs(bar).max() for bar in bars.values())
    for parameter, bar in bars.items():
        np.testing.assert_allclose(gradients[parameter], bar, rtol=1e-9, atol=1e-12 * largest, err_msg=parameter)


def run(start: Arrays, config: ModelConfig) -> maths.Chain:
    """Forward to the loss, from everything the chain starts with."""
    chain = maths.Chain(dict(start))
    assert maths.next_token_loss(chain, maths.transformer(chain, config)) == "loss"
    return chain


SMALL = {"vocab_size": 13, "context_length": 7, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 11}
LAYER = {"norm": "layer", "mlp": "plain"}
VARIED: list[dict[str, Any]] = [
    {},
    {"tied": False},
    {"qk_norm": True},
    {"qk_norm": True, "positions": "none", "tied": False},
    {"norm_placement": "post"},
    {"norm_placement": "post", "positions": "sinusoidal", "activation": "gelu", **LAYER},
    {"norm_placement": "post", "qk_norm": True, "dropout": 0.2},
    {"positions": "learned"},
    {"positions": "learned", "dropout": 0.4, "norm_placement": "post"},
    {"positions": "sinusoidal", "dropout": 0.3},
    {"positions": "none"},
    {"num_heads": 6, "num_kv_heads": 2},
    {"num_heads": 6, "num_kv_heads": 1, "d_head": 4, "attention_window": 1},
    {"attention_window": 3, "windowed_blocks": (1,)},
    {"attention_window": 20, "windowed_blocks": ()},
    {"rotary_layout": "interleaved", "rotary_scaling": "linear", "rotary_factor": 2.0},
    {"rotary_scaling": "llama3", "rotary_factor": 2.0, "mlp": "plain", "activation": "gelu_tanh"},
    {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_attention_factor": 1.3},
    {"activation": "relu2", "attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    {"activation": "relu2", "mlp_bias": True, "num_layers": 1, **LAYER},
    {"activation": "gelu", "dropout": 0.1, "positions": "none", "tied": False},
    {"d_head": 2, "num_heads": 1, "num_layers": 1, "context_length": 1},
    {"lora_rank": 2, "lora_alpha": 1.0, "lora_dropout": 0.3, "mlp": "plain", "attention_bias": True},
]
every_configuration = pytest.mark.parametrize("varied", VARIED, ids=str)


def a_step(config: ModelConfig, rng: np.random.Generator, training: bool = True) -> Arrays:
    """Weights, tokens, targets and masks: everything the chain starts with."""
    weights = {p.name: 0.4 * rng.standard_normal(p.shape) + (p.init == "ones") for p in parameters(config)}
    shape = (3, config.context_length)
    tokens, targets = (rng.integers(0, config.vocab_size, shape) for _ in range(2))
    sizes = {"batch": 3, "position": shape[1], "query": shape[1], "key": shape[1], "head": config.num_heads,
             "d_model": config.d_model, "d_head": config.sizes.d_head, "d_ff": config.sizes.d_ff}  # fmt: skip
    share = max(config.dropout, config.lora_dropout)
    masks = {
        f"kept({quantity.name})": (rng.random([sizes[axis] for axis in quantity.axes]) > share).astype(float)
        for quantity in quantities(config)
        if quantity.name.endswith("dropped") and training
    }
    return {**weights, "tokens": tokens, "targets": targets, **masks}


@every_configuration
def test_quantities_come_under_their_names_in_their_order_with_their_axes(varied: dict[str, Any]) -> None:
    config = ModelConfig(**(SMALL | varied))
    chain = run(a_step(config, np.random.default_rng(0)), config)
    assert [link.name for link in chain.links] == [quantity.name for quantity in quantities(config)]
    length = config.context_length
    sizes = {"batch": 3, "position": length, "query": length, "key": length, "head": config.num_heads,
             "kv_head": config.sizes.num_kv_heads, "d_head": config.sizes.d_head, "d_model": config.d_model,
             "d_ff": config.sizes.d_ff, "rank": config.lora_rank,
             "vocab": config.vocab_size}  # fmt: skip
    for quantity in quantities(config):
        assert chain.values[quantity.name].shape == tuple(sizes[axis] for axis in quantity.axes), quantity.name
        assert chain.values[quantity.name].dtype == np.float64


@every_configuration
def test_gradients_are_the_slope_along_a_random_direction(varied: dict[str, Any]) -> None:
    config = ModelConfig(**(SMALL | varied))
    rng = np.random.default_rng(3)
    start = a_step(config, rng)
    direction = {p.name: rng.standard_normal(p.shape) for p in parameters(config)}

    def loss(t: float) -> float:
        moved = start | {name: start[name] + t * v for name, v in direction.items()}
        return float(run(moved, config).values["loss"])

    h = 1e-4
    along = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)  # fourth order
    gradients = run(start, config).backward("loss")
    terms = [np.vdot(gradients[name], v) for name, v in direction.items()]
    assert sum(terms) == pytest.approx(along, abs=1e-7 * sum(map(abs, terms)))


def test_nothing_is_dropped_where_no_mask_was_drawn() -> None:
    config = ModelConfig(**SMALL, dropout=0.5, positions="learned")
    chain = run(a_step(config, np.random.default_rng(0), training=False), config)
    named = [link.name for link in chain.links]
    assert named == [quantity.name for quantity in quantities(ModelConfig(**SMALL, positions="learned"))]


def test_a_text_shorter_than_the_context_needs_no_padding() -> None:
    config = ModelConfig(**SMALL, positions="learned")
    start = a_step(config, np.random.default_rng(0))
    whole = run(start, config).values["logits"]
    part = run(start | {"tokens": start["tokens"][:, :3], "targets": start["targets"][:, :3]}, config)
    np.testing.assert_allclose(part.values["logits"], whole[:, :3], atol=1e-13)
    assert not part.backward("loss")["embed.positions.weight"][3:].any()
