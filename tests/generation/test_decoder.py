"""The short cut at one position beside the whole model: every family, alone, in a batch, and in other formats."""

import copy

import pytest
import torch

from limpid.config import ModelConfig
from limpid.errors import ConfigError
from limpid.generation.decoder import Decoder, resolve_format
from limpid.model import Cache, Transformer, initialise

VARIANTS = {
    "llama": {},
    "shared keys": {"num_kv_heads": 2},
    "one key, pairs": {"num_kv_heads": 1, "rotary_layout": "interleaved"},
    "heads wider than the model": {"d_head": 16},
    "query-key norm": {"qk_norm": True, "num_kv_heads": 2},
    "a window": {"attention_window": 5},
    "windowed blocks": {"attention_window": 3, "windowed_blocks": (1,)},
    "biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "gpt-2": {
        "positions": "learned",
        "norm": "layer",
        "mlp": "plain",
        "activation": "gelu_tanh",
        "attention_bias": True,
    },
    "plain, squared": {"mlp": "plain", "activation": "relu2"},
    "post": {"norm_placement": "post", "positions": "sinusoidal", "norm": "layer"},
    "untied": {"tied": False},
    "scaled positions": {"rotary_scaling": "linear", "rotary_factor": 4.0},
}


def model(compute: torch.dtype = torch.float32, parameters: torch.dtype = torch.float32, **options) -> Transformer:
    shape = {"vocab_size": 61, "context_length": 24, "d_model": 32, "num_layers": 2, "num_heads": 4, "init_std": 0.3}
    net = initialise(Transformer(ModelConfig(**(shape | options)), compute).to(parameters), 3).eval()
    for name, parameter in net.named_parameters():  # a gain of one and a bias of zero would hide a missing one
        if name.endswith("bias") or "norm" in name:
            parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return net


@torch.inference_mode()
def step_by_step(net, tokens: torch.Tensor, padding: torch.Tensor | None, first: int) -> torch.Tensor:
    """Logits of the last position at every step, the first `first` positions read at once."""
    cache = Cache(net.config, len(tokens), tokens.shape[1], net.compute, padding)
    made = [net(tokens[:, :first], cache, last_only=True)] if first else []
    made += [net(tokens[:, [place]], cache, last_only=True) for place in range(first, tokens.shape[1])]
    return torch.cat(made, 1)


def draw(rows: int, count: int) -> torch.Tensor:
    return torch.randint(0, 61, (rows, count), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padding", [None, [0, 3, 5]])
def test_the_short_cut_gives_the_models_logits(variant: str, padding: list[int] | None) -> None:
    net = model(parameters=torch.float64, compute=torch.float64, **VARIANTS[variant])
    unused = None if padding is None else torch.tensor(padding)
    tokens = draw(3, 24)
    short = step_by_step(Decoder(net), tokens, unused, first=7)
    torch.testing.assert_close(short, step_by_step(net, tokens, unused, first=7), rtol=0, atol=2e-12)
    if padding is None:
        torch.testing.assert_close(short, net(tokens)[:, 6:], rtol=0, atol=2e-12)


@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16, torch.float32])
def test_it_runs_in_the_format_of_the_weights(compute: torch.dtype) -> None:
    net, tokens = model(compute), draw(2, 20)
    wide, narrow = Decoder(net), Decoder(copy.deepcopy(net).to(compute))
    exact = step_by_step(model(torch.float32), tokens, None, first=1)
    torch.testing.assert_close(step_by_step(wide, tokens, None, first=1), exact, rtol=0.05, atol=2e-5)
    assert wide.model.embed.tokens.weight.data_ptr() == net.embed.tokens.weight.data_ptr()  # no copy of the weights
    short = step_by_step(narrow, tokens, None, first=1)
    assert short.dtype == compute
    if compute != torch.float32:
        assert narrow.position_decoder is None
        assert torch.equal(short, step_by_step(narrow.model, tokens, None, first=1))


def test_a_decoder_of_a_decoder_is_itself() -> None:
    decoder = Decoder(model())
    assert Decoder.of(decoder) is decoder


@pytest.mark.parametrize("count", [1, 3])
def test_positions_beyond_the_context_are_an_error_not_a_wrong_angle(count: int) -> None:
    net = Decoder(model())
    cache = Cache(net.config, 1, 30, net.compute, None)
    with torch.inference_mode():
        net(draw(1, 24), cache)
        with pytest.raises(IndexError, match="outside the context of 24"):
            net(draw(1, count), cache)


@pytest.mark.parametrize("variant", ["llama", "gpt-2", "untied", "shared keys"])
def test_narrow_weights_are_those_of_a_model_that_has_them_rounded(variant: str) -> None:
    tokens = draw(3, 24)
    for weights in ("bf16", "int8"):
        net, narrowed = model(**VARIANTS[variant]), model(**VARIANTS[variant])
        for name, parameter in narrowed.named_parameters():
            if parameter.ndim == 2 and name != "embed.positions.weight":
                parameter.data.copy_(rounded(parameter.data, weights))
        narrowed.embed.load_state_dict(net.embed.state_dict())  # a token's own vector is looked up, not multiplied
        expected = step_by_step(Head(narrowed, net, weights), tokens, None, first=0)
        assert torch.allclose(step_by_step(Decoder(net, weights), tokens, None, first=0), expected, atol=2e-4)


def rounded(matrix: torch.Tensor, weights: str) -> torch.Tensor:
    if weights == "bf16":
        return matrix.bfloat16().float()
    scale = matrix.abs().amax(-1, keepdim=True) / 127
    return (matrix / scale).round() * scale


class Head:
    """A model whose output matrix is rounded, also where it is the embedding, which is not."""

    def __init__(self, net: Transformer, whole: Transformer, weights: str) -> None:
        self.net, self.config, self.compute = net, net.config, net.compute
        table = whole.embed.tokens.weight if net.config.tied else whole.logits.weight
        self.matrix = rounded(table.data, weights)

    def __call__(self, tokens: torch.Tensor, cache: Cache, last_only: bool) -> torch.Tensor:
        seen = {}
        self.net(tokens, cache, last_only, observe=lambda name, value: seen.setdefault(name, value))
        return seen["final_norm"] @ self.matrix.T


def test_auto_reads_half_as_much_where_that_loses_nothing() -> None:
    whole, half = model(), model()
    half.to(torch.bfloat16).to(torch.float32)
    assert resolve_format(whole, "auto") == "fp32"
    assert resolve_format(half, "auto") == "bf16"
    tokens = draw(2, 24)
    long, short = (step_by_step(Decoder(half, weights), tokens, None, first=3) for weights in ("fp32", "auto"))
    assert torch.allclose(long, short, atol=1e-4)


def test_narrow_weights_beside_float64_are_refused() -> None:
    with pytest.raises(ConfigError, match="fp64"):
        Decoder(model(parameters=torch.float64, compute=torch.float64), "int8")


@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_a_cached_model_makes_lies_where_its_weights_lie(variant: str) -> None:
    where = torch.device("meta")
    net, tokens = model(**VARIANTS[variant]).to(where), draw(2, 12).to(where)
    cache = Cache(net.config, 2, 12, net.compute, None, where)
    assert net(tokens[:, :5], cache, last_only=True).device == where
    assert net(tokens[:, 5:], cache).device == where
