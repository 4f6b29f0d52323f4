"""Broken on purpose: the trace names the first quantity that is wrong, and only wrong things are wrong."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from recorded import VARIANTS, configuration, record
from rich.console import Console

import limpid.model.attention
import limpid.model.dropout
import limpid.model.kernels.attention
import limpid.model.kernels.linear_cross_entropy
import limpid.model.mlp
import limpid.model.norm
import limpid.model.transformer
import limpid.training.state
import limpid.training.step
from limpid import maths
from limpid.model.kernels.linear_cross_entropy import LinearCrossEntropy
from limpid.quantities import quantities
from limpid.tracing import show_step, verify_step
from limpid.training.record import Observation

LINEAR_CROSS_ENTROPY = limpid.model.kernels.linear_cross_entropy.linear_cross_entropy
SHORT_ATTENTION = limpid.model.attention.short_attention


@pytest.fixture(autouse=True)
def two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken here is used in all formats, as some processors use it."""
    monkeypatch.setattr(limpid.model.kernels.attention, "materialised_positions", lambda itemsize: 512)


HALF_AND_SINGLE = ("fp32", "bf16")


def first(tmp_path: Path, variant: str, precision: str, **options) -> str:
    check = verify_step(record(tmp_path, configuration(variant, precision, **options))).first_disagreement()
    return "nothing" if check is None else f"{check.name} ({check.kind})"


def wrong_rotation(x, angles, layout, mode):
    cos, sin = angles
    first_half, second_half = x.chunk(2, -1)
    return torch.cat((first_half * cos + second_half * sin, second_half * cos - first_half * sin), -1).to(x.dtype)


def rms_norm_with_eps_outside_the_root(self, x, mode, to=None):
    return (x / (x.float().square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight).to(to or x.dtype)


def layer_norm_without_mean(self, x, mode, to=None):
    return (x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias).to(to or x.dtype)


def swapped_mlp(self, x, mode):
    gate, up = self.report(mode, "gate", self.gate(x)), self.report(mode, "up", self.up(x))
    hidden = self.report(mode, "hidden", gate * self.activation(up))
    return self.report(mode, "output", self.output(hidden))


def block_without_residual(self, x, compute, angles, mask, cache, mode):
    normed = self.report(mode, "norm1", self.norm1(x, mode).to(compute))
    x = self.report(mode, "residual1", self.attention(normed, angles, mask, cache, mode).to(x.dtype))
    normed = self.report(mode, "norm2", self.norm2(x, mode).to(compute))
    return self.report(mode, "residual2", x + self.mlp(normed, mode))


def dropout_without_rescaling(self, x, mode):
    if not (self.training and self.probability):
        return x
    kept = torch.empty_like(x).bernoulli_(1 - self.probability)
    mode.report(f"kept({self.name})", kept)
    return mode.report(self.name, x * kept)


def mixing(change):
    """plain_attention after `change` of query, key and value."""
    original = limpid.model.attention.Attention.plain_attention

    def plain_attention(self, query, key, value, visible, mode):
        return original(self, *change(query, key, value), visible, mode)

    return plain_attention


def later_mask(positions, window, device):
    return torch.ones(positions, positions, dtype=torch.bool, device=device).tril(1)


def shifted_linear_cross_entropy(hidden, matrix, targets, labels, scale):
    return LINEAR_CROSS_ENTROPY(hidden, matrix, targets.roll(1, 1), labels, scale)


def halved_loss(hidden, matrix, targets, labels, scale):
    return LINEAR_CROSS_ENTROPY(hidden, matrix, targets, 2 * labels, scale)


def attention_with_swapped_values(query, key, value, mask):
    return SHORT_ATTENTION(query, key, value.flip(1), mask)


ENGINE = {
    "wrong sign of rotation": (
        "llama", limpid.model.attention, "rotate", wrong_rotation,
        "blocks.0.attention.query_rotated (forward)",
    ),
    "no 1/√d": (
        "llama", limpid.model.attention, "math", SimpleNamespace(sqrt=lambda _: 1.0, inf=math.inf),
        "blocks.0.attention.scores (forward)",
    ),
    "mask off by one": (
        "llama", limpid.model.attention, "causal_mask", later_mask, "blocks.0.attention.weights (forward)",
    ),
    "targets off by one": (
        "llama", limpid.model.kernels.linear_cross_entropy, "linear_cross_entropy", shifted_linear_cross_entropy,
        "loss (forward)",
    ),
    "twice as many labels": (
        "llama", limpid.model.kernels.linear_cross_entropy, "linear_cross_entropy", halved_loss, "loss (forward)",
    ),
    "ε outside the root": (
        "llama", limpid.model.norm.RMSNorm, "forward", rms_norm_with_eps_outside_the_root,
        "blocks.0.norm1 (forward)",
    ),
    "no mean": ("gpt-2", limpid.model.norm.LayerNorm, "forward", layer_norm_without_mean, "blocks.0.norm1 (forward)"),
    "gate and up swapped": ("llama", limpid.model.mlp.Mlp, "forward", swapped_mlp, "blocks.0.mlp.hidden (forward)"),
    "exact instead of approximate gelu": (
        "gpt-2", limpid.model.mlp, "ACTIVATIONS", {"gelu_tanh": torch.nn.functional.gelu},
        "blocks.0.mlp.hidden (forward)",
    ),
    "no residual": (
        "llama", limpid.model.transformer.Block, "forward", block_without_residual, "blocks.0.residual1 (forward)",
    ),
    "dropout without rescaling": (
        "dropout", limpid.model.dropout.Dropout, "forward", dropout_without_rescaling, "embed.dropped (forward)",
    ),
    "wrong key head": (
        "shared keys in a window", limpid.model.attention.Attention, "plain_attention",
        mixing(lambda q, k, v: (q, k.flip(1), v)), "blocks.0.attention.scores (forward)",
    ),
    "wrong value head": (
        "shared keys in a window", limpid.model.attention, "short_attention", attention_with_swapped_values,
        "blocks.0.attention.mixed (forward)",
    ),
    "clipping at twice the norm": (
        "llama", limpid.training.step, "clip",
        lambda *state, clip=limpid.training.step.clip: clip(*state[:3], 2 * state[3], *state[4:]),
        "m(embed.tokens.weight) (update)",
    ),
    "rate of the step before": (
        "llama", limpid.training.step, "learning_rate",
        lambda number, steps, update, rate=limpid.training.step.learning_rate: rate(number - 1, steps, update),
        "learning_rate (update)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "precision"), list(itertools.product(ENGINE, HALF_AND_SINGLE)))
def test_a_broken_engine_is_caught_at_the_quantity_that_is_broken(
    fault: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, where, name, replacement, expected = ENGINE[fault]
    monkeypatch.setattr(where, name, replacement)
    assert first(tmp_path, variant, precision) == expected


def optimizer_with(monkeypatch: pytest.MonkeyPatch, make) -> None:
    monkeypatch.setattr(limpid.training.state, "make_optimizer", make)


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
def test_decay_through_the_gradient_is_caught(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(model, update):
        return torch.optim.Adam(
            model.parameters(), update.learning_rate, (update.beta1, update.beta2), update.eps, update.weight_decay
        )

    optimizer_with(monkeypatch, make)
    assert first(tmp_path, "llama", precision) == "m(embed.tokens.weight) (update)"


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
def test_decay_of_gains_is_caught(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(model, update):
        betas = (update.beta1, update.beta2)
        return torch.optim.AdamW(model.parameters(), update.learning_rate, betas, update.eps, update.weight_decay)

    optimizer_with(monkeypatch, make)
    assert first(tmp_path, "llama", precision) == "blocks.0.norm1.weight (update)"


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
def test_missing_bias_correction_is_caught(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = limpid.training.step.update

    def update(optimizer, scaler, rate, *, finite):
        for memory in optimizer.state.values():
            memory["step"].fill_(1e6)  # 1 - βᵗ is 1
        return original(optimizer, scaler, rate, finite=finite)

    monkeypatch.setattr(limpid.training.step, "update", update)
    assert first(tmp_path, "llama", precision) == "embed.tokens.weight (update)"


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
def test_a_fault_of_the_fast_path_alone_is_caught(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LinearCrossEntropy.backward

    def backward(ctx, loss_bar):
        return original(ctx, 0.5 * loss_bar)

    monkeypatch.setattr(LinearCrossEntropy, "backward", staticmethod(backward))
    assert first(tmp_path, "llama", precision) == "final_norm (backward)"


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
def test_attention_that_halves_the_gradient_of_queries_is_caught(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, bar):
            return 0.5 * bar

    def short_attention(query, key, value, mask):
        return SHORT_ATTENTION(Careless.apply(query), key, value, mask)

    monkeypatch.setattr(limpid.model.attention, "short_attention", short_attention)
    assert first(tmp_path, "llama", precision) == "blocks.1.attention.query_rotated (backward)"


def corrupted(name_of_interest: str, *, gradient: bool):
    """An observation that sees (and passes on) one quantity, or its gradient, off by a thirty-second."""
    original = Observation.observe

    def see(self, name, value):
        if name != name_of_interest:
            return original(self, name, value)
        if not gradient:
            return original(self, name, value * (1 + 2**-5))
        value.register_hook(lambda bar: bar * (1 + 2**-5))
        return original(self, name, value)

    return see


EVERY = [
    (variant, quantity.name)
    for variant in ("llama", "gpt-2", "qwen3")
    for quantity in quantities(configuration(variant, "fp32").model)
    if ".1." not in quantity.name
]


@pytest.mark.parametrize(
    ("variant", "name", "precision"),
    [*((*one, "bf16") for one in EVERY), *((*one, "fp32") for one in EVERY if one[0] == "llama")],
)
def test_any_quantity_three_percent_off_is_named(
    variant: str, name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observation, "observe", corrupted(name, gradient=False))
    assert first(tmp_path, variant, precision) == f"{name} (forward)"


@pytest.mark.parametrize(("variant", "name"), [(variant, name) for variant, name in EVERY if name not in ("loss",)])
def test_any_gradient_three_percent_off_is_named(
    variant: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observation, "observe", corrupted(name, gradient=True))
    assert first(tmp_path, variant, "fp32") == f"{name} (backward)"


def scaled_backward(kind: type[maths.Operation]):
    original = kind.backward

    def backward(self, y_bar, saved):
        return tuple(None if bar is None else 1.05 * bar for bar in original(self, y_bar, saved))

    return backward


def scaled_forward(kind: type[maths.Operation]):
    original = kind.forward

    def forward(self, *inputs):
        y, saved = original(self, *inputs)
        return 1.05 * y, saved

    return forward


REFERENCE = {
    maths.RMSNorm: ("llama", "blocks.0.norm1"),
    maths.LayerNorm: ("gpt-2", "blocks.0.norm1"),
    maths.Linear: ("llama", "blocks.0.attention.query"),
    maths.Add: ("llama", "blocks.0.residual1"),
    maths.Embedding: ("llama", "embed.tokens"),
    maths.LearnedPositions: ("gpt-2", "embed.positions"),
    maths.SinusoidalPositions: ("the paper's", "embed.positions"),
    maths.Rotary: ("llama", "blocks.0.attention.query_rotated"),
    maths.Scores: ("dropout", "blocks.0.attention.scores"),  # with dropout, attention is not fused
    maths.CausalSoftmax: ("dropout", "blocks.0.attention.weights"),
    maths.Mix: ("dropout", "blocks.0.attention.mixed"),
    maths.Dropout: ("dropout", "embed.dropped"),
    maths.LogSoftmax: ("llama", "log_probabilities"),
    maths.GELUTanh: ("gpt-2", "blocks.0.mlp.hidden"),
    maths.ReLU: ("the paper's", "blocks.0.mlp.hidden"),
    maths.SquaredReLU: ("squared relu, nowhere", "blocks.0.mlp.hidden"),
}


@pytest.mark.parametrize("kind", REFERENCE, ids=lambda kind: kind.__name__)
def test_a_broken_reference_is_caught_too(kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, name = REFERENCE[kind]
    path = record(tmp_path, configuration(variant, "bf16"))
    with monkeypatch.context() as broken:
        broken.setattr(kind, "forward", scaled_forward(kind))
        check = verify_step(path).first_disagreement()
        assert check is not None
        assert check.name == name
    if kind is not maths.SinusoidalPositions:
        monkeypatch.setattr(kind, "backward", scaled_backward(kind))
        check = verify_step(path).first_disagreement()
        assert check is not None
        assert check.kind == "backward"


def test_the_verdict_says_where_and_exits_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(limpid.model.attention, "rotate", wrong_rotation)
    code = show_step(record(tmp_path, configuration("llama", "bf16")), console=Console(width=200))
    printed = capsys.readouterr().out
    assert code == 1
    assert "DISAGREES  first at blocks.0.attention.query_rotated (forward)" in printed
    assert "Su et al. 2021" in printed


def test_every_variant_is_one_that_somebody_trains() -> None:
    assert set(VARIANTS) >= {variant for variant, *_ in ENGINE.values()}


@pytest.mark.parametrize("precision", HALF_AND_SINGLE)
@pytest.mark.parametrize(
    "quantity",
    ["embed.tokens", "blocks.0.attention.value", "blocks.0.mlp.hidden", "blocks.0.residual2", "final_norm"],
)
def test_a_gradient_that_never_comes_is_missed_where_it_was_cut_off(
    quantity: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Observation.observe

    def cut(self, name, value):
        value = observe(self, name, value)
        return value.detach().requires_grad_() if name == quantity else value

    monkeypatch.setattr(Observation, "observe", cut)
    assert first(tmp_path, "llama", precision, rule="sgd") == f"{quantity} (backward)"
