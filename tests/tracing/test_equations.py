"""What is shown beside a value are this model's equations: every letter of them is something that it has."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpid.config import ModelConfig, UpdateConfig
from limpid.latex import readable
from limpid.maths.activation import GELU, GELUTanh, SiLU
from limpid.maths.chain import Chain, Link
from limpid.maths.dora import Magnitude, RowLength
from limpid.maths.dropout import Dropout
from limpid.maths.embedding import Embedding, Rotary
from limpid.maths.loss import next_token_loss
from limpid.maths.mlp import Gated
from limpid.maths.norm import LayerNorm, RMSNorm
from limpid.maths.step import rule
from limpid.maths.transformer import transformer
from limpid.quantities import parameters
from limpid.tracing import equations


@dataclass(frozen=True)
class Made:
    """One operation of a model, on its inputs."""

    link: Link
    shapes: list[tuple[int, ...]]

    def of(self, *kinds: type) -> bool:
        operation = getattr(self.link.operation, "inside", self.link.operation)
        return isinstance(operation, kinds) or isinstance(getattr(operation, "activation", None), kinds)

    def reads(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self.link.inputs)

    @property
    def shared_heads(self) -> bool:
        """Whether several query heads read one of several key heads."""
        own = {"scores": 2, "mixed": 1}.get(self.link.name.rpartition(".")[2])
        if own is None:
            return False
        heads, kv_heads = self.shapes[0][own], self.shapes[1][2]
        return 1 < kv_heads < heads


EVERYWHERE = set("xyzswqkvohuLN") | {r"\ell", "e", r"\log", r"\max", r"\pi"}
"""Inputs and outputs, counts of what was read, and mathematics itself."""
INDICES = set("ijhtfv") | {"i'", "j'", "v'"}
PRESENT: dict[str, Callable[[Made], bool]] = {
    "W": lambda made: made.reads(".weight") and not made.reads("embed.tokens.weight"),
    "E": lambda made: made.reads("embed.tokens.weight"),
    "P": lambda made: made.reads("embed.positions.weight"),
    "b": lambda made: made.reads(".bias"),
    r"\beta": lambda made: made.reads(".bias") and made.of(LayerNorm),
    r"\gamma": lambda made: made.of(LayerNorm, RMSNorm) and made.reads(".weight"),
    r"\mu": lambda made: made.of(LayerNorm),
    r"\sigma": lambda made: made.of(LayerNorm, SiLU),
    "r": lambda made: made.of(RMSNorm),
    "g": lambda made: made.shared_heads or made.of(Gated),
    "f": lambda made: made.of(Gated),
    r"\Phi": lambda made: made.of(GELU),
    r"\erf": lambda made: made.of(GELU),
    r"\tanh": lambda made: made.of(GELUTanh),
    "a": lambda made: made.of(GELUTanh),
    r"\theta": lambda made: made.of(Rotary),
    r"\cos": lambda made: made.of(Rotary) or made.link.name == "embed.positions",
    r"\sin": lambda made: made.of(Rotary) or made.link.name == "embed.positions",
    r"\top": lambda made: made.of(Embedding),
    r"\lVert": lambda made: made.of(RowLength),
    r"\rVert": lambda made: made.of(RowLength),
    "V": lambda made: made.of(RowLength),
    "A": lambda made: made.of(RowLength),
    "B": lambda made: made.of(RowLength),
    "n": lambda made: made.of(RowLength, Magnitude),
    "m": lambda made: made.of(Magnitude),
}
"""Letters that not every model has, and who has them. A letter that stands nowhere here is in no model."""
LAYOUT = (
    r"\\(text|operatorname)\{(?!erf)[^}]*\}|\\(begin|end)\{pmatrix\}|\\(tfrac|frac|sqrt|sum|bar|hat|bigl?|bigr|quad|odot"
    r"|le|in|sim|lfloor|rfloor|cdot|left|right|operatorname)(?![a-z])|\\[,\\;]"
)


def letters(line: str) -> Iterator[str]:
    """Letters and functions of a LaTeX line, without the indices that stand below others."""
    line = re.sub(LAYOUT, " ", line.replace(r"\operatorname{erf}", r"\erf"))
    line = re.sub(r"_(\{[^{}]*\}|\\?[a-zA-Z]+'?)", " ", line)
    yield from re.findall(r"\\[a-zA-Z]+|[a-zA-Z]'?", line)


def strange(line: str, made: Made) -> list[str]:
    """Letters of a line that are nothing in this model."""
    found = (letter.removesuffix("'") if letter[0] == "f" else letter for letter in letters(line))
    known = EVERYWHERE | INDICES
    return [one for one in found if one not in known and not (one in PRESENT and PRESENT[one](made))]


class Drawn(dict):
    """Values in which every mask of dropout is found."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("kept(") or super().__contains__(name)


class Masked(Chain):
    """A chain that keeps everything where entries are dropped."""

    def apply(self, name, operation, *inputs):
        if isinstance(operation, Dropout):
            self.values[inputs[1]] = np.ones_like(self.values[inputs[0]])
        return super().apply(name, operation, *inputs)


def made_by(config: ModelConfig) -> Iterator[Made]:
    """Every operation of one forward pass."""
    rng = np.random.default_rng(0)
    values = {parameter.name: rng.normal(size=parameter.shape) for parameter in parameters(config)}
    tokens = np.arange(2 * config.context_length).reshape(2, -1) % config.vocab_size
    values |= {"tokens": tokens, "targets": tokens}
    chain = (Masked if config.drops else Chain)(Drawn(values) if config.drops else values)
    next_token_loss(chain, transformer(chain, config))
    for link in chain.links:
        yield Made(link, [np.shape(chain.values[name]) for name in link.inputs])


def shown(made: Made) -> list[str]:
    link = made.link
    return [
        equations.forward(link.operation, link.inputs, made.shapes),
        *filter(None, equations.backward(link.operation, link.inputs, made.shapes)),
    ]


switch = st.booleans()
MODELS = st.builds(
    ModelConfig,
    vocab_size=st.just(7), context_length=st.just(4), d_model=st.just(24), num_layers=st.just(1), d_ff=st.just(8),
    num_heads=st.just(6), num_kv_heads=st.sampled_from([None, 1, 2, 3, 6]), norm=st.sampled_from(["rms", "layer"]),
    norm_placement=st.sampled_from(["pre", "post", "after_mlp"]), attention_residual=switch,
    norm_eps=st.sampled_from([0.0, 1e-5, 3e-6, 0.5]), qk_norm=switch,
    positions=st.sampled_from(["rotary", "learned", "sinusoidal", "none"]),
    rotary_base=st.sampled_from([10000.0, 500000.0, 1e6]), rotary_layout=st.sampled_from(["half", "interleaved"]),
    rotary_scaling=st.sampled_from(["none", "linear", "llama3", "yarn"]), rotary_factor=st.sampled_from([1.0, 4.0]),
    attention_window=st.sampled_from([None, 2]), attention_bias=switch, attention_output_bias=switch,
    mlp=st.sampled_from(["gated", "plain"]), activation=st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2"]),
    mlp_bias=switch, tied=switch, dropout=st.sampled_from([0.0, 0.1]), lora_rank=st.sampled_from([0, 2]),
    use_dora=switch, lora_dropout=st.sampled_from([0.0, 0.2]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MODELS)
def test_every_letter_that_is_shown_exists_in_this_model(config: ModelConfig) -> None:
    for made in made_by(config):
        for line in shown(made):
            assert strange(line, made) == [], f"{made.link.name}: {readable(line)}"
            assert line.count("{") == line.count("}")


SMALL = {"vocab_size": 7, "context_length": 4, "d_model": 24, "num_layers": 1, "num_heads": 6}


@pytest.mark.parametrize(
    ("options", "name", "equation"),
    [
        ({}, "blocks.0.attention.query", "y_i = ∑_j W_{ij} x_j"),
        ({"attention_bias": True}, "blocks.0.attention.query", "y_i = ∑_j W_{ij} x_j + b_i"),
        ({}, "logits", "y_i = ∑_j E_{ij} x_j"),
        ({"tied": False}, "logits", "y_i = ∑_j W_{ij} x_j"),
        ({}, "blocks.0.attention.scores", "s_{hij} = 1/√(4) ∑_f q_{ihf} k_{jhf}"),
        ({"num_kv_heads": 1}, "blocks.0.attention.scores", "s_{hij} = 1/√(4) ∑_f q_{ihf} k_{jf}"),
        (
            {"num_kv_heads": 2},
            "blocks.0.attention.scores",
            "s_{hij} = 1/√(4) ∑_f q_{ihf} k_{jgf}, g = ⌊h / 3⌋",
        ),
        ({}, "blocks.0.norm1", "y_i = γ_i x̂_i, x̂_i = x_i / r, r^2 = 1/24 ∑_j x_j^2 + 10^{-5}"),
        ({"norm_eps": 0.0}, "blocks.0.norm1", "y_i = γ_i x̂_i, x̂_i = x_i / r, r^2 = 1/24 ∑_j x_j^2"),
        ({}, "blocks.0.mlp.hidden", "h = f(g) ⊙ u, f(x) = x σ(x), σ(x) = 1 / (1 + e^{-x})"),
        ({"mlp": "plain", "activation": "relu"}, "blocks.0.mlp.hidden", "y = max(0, x)"),
        ({"positions": "sinusoidal"}, "embed.positions",
         "y_{t,2 i} = sin(t 10000^{-2 i / 24}), y_{t,2 i + 1} = cos(t 10000^{-2 i / 24})"),
    ],
)  # fmt: skip
def test_an_option_changes_what_is_shown(options: dict, name: str, equation: str) -> None:
    made = next(made for made in made_by(ModelConfig(**SMALL, **options)) if made.link.name == name)
    assert readable(shown(made)[0]) == equation


@settings(max_examples=30, deadline=None)
@given(MODELS)
def test_rotated_pairs_are_those_that_turn_together(config: ModelConfig) -> None:
    """The line's pairs and factor, put into numbers, are what the operation computes."""
    for made in made_by(config):
        if not isinstance(made.link.operation, Rotary):
            continue
        rotary, d_head = made.link.operation, made.shapes[0][-1]
        line = shown(made)[0]
        first, second = (0, 1) if "_{2i}" in line else (0, d_head // 2)
        assert (f"_{{i+{d_head // 2}}}" in line) == (rotary.layout == "half")
        x = np.random.default_rng(0).normal(size=(1, 3, 1, d_head))
        angles, turned = 2 * rotary.frequencies(d_head)[0], rotary.forward(x)[0]
        expected = rotary.scale() * (np.cos(angles) * x[0, 2, 0, first] - np.sin(angles) * x[0, 2, 0, second])
        assert turned[0, 2, 0, first] == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["adamw", "adam", "muon", "momentum", "sgd"]), st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.9]), switch,
)  # fmt: skip
def test_every_letter_of_an_update_rule_has_a_value(name: str, decay: float, beta1: float, decayed: bool) -> None:
    parameter = next(one for one in parameters(ModelConfig(**SMALL)) if one.hidden)
    how = rule(UpdateConfig(optimizer=name, weight_decay=decay, beta1=beta1), parameter)
    text = " ".join(how.as_used(decayed))
    own = re.findall(r"\\lambda|\\beta(?:_\d)?|\\varepsilon|(?<![a-z\\])[abc](?= |\\,)", text)
    assert all(f"{letter} = " in text for letter in own), text
    assert (r"\lambda" in text) == (decay > 0 and decayed)


def test_the_check_sees_what_is_not_there() -> None:
    query = next(made for made in made_by(ModelConfig(**SMALL)) if made.link.name == "blocks.0.attention.query")
    assert strange(type(query.link.operation).equation, query) == ["b"]
    assert strange(r"y = x \odot k / (1 - p), \quad d = G", query) == ["p", "d", "G"]
