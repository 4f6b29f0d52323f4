"""Custom Functions that other people published, each in a step: python -m benchmarks.published_functions [NAME …].

What each is meant to be was written down from its own words before any was run: an adjoint, a surrogate (straight
through, spikes, reversal), or another gradient on purpose. Those of libraries that are not installed are left out:
pip install entmax sparsemax linear_operator torchdiffeq torchsde kornia snntorch norse pytorch-revgrad spikingjelly
brevitas reformer_pytorch.
"""

import argparse
import contextlib
import importlib
import io
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import limpid
from limpid.adjoints.adjoint import Adjoint

Apply = Callable[[Any, Tensor], Any]
ADJOINT, SURROGATE, OTHER = "an adjoint", "a surrogate", "another on purpose"
WORDS = torch.arange(16).view(1, 16) % 30 + 3
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
SOUND = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 12,
         "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (4, 4), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "squeeze_factor": 2,
         "position_buckets": 4, "max_position_embeddings": 16}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BloomForCausalLM": (ADJOINT, "BloomConfig", {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "ReformerModelWithLMHead": (ADJOINT, "ReformerConfig", {
        "vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8, "pad_token_id": 0,
        "attn_layers": ["lsh", "local"], "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [8, 8], "is_decoder": True,
        "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "num_buckets": 2, "feed_forward_size": 24}),
    "SEWDForCTC": (ADJOINT, "SEWDConfig", SOUND),
    "IBertForMaskedLM": (SURROGATE, "IBertConfig", SIZES | {"quant_mode": True}),
    "PhimoeForCausalLM": (OTHER, "PhimoeConfig", SIZES | {"num_key_value_heads": 1, "num_local_experts": 4}),
    "RecurrentGemmaForCausalLM": (OTHER, "RecurrentGemmaConfig", SIZES | {
        "num_key_value_heads": 1, "lru_width": 16, "head_dim": 8, "num_hidden_layers": 3}),
}  # fmt: skip
"""Models of transformers that have Functions of their own which run on the processor."""
CUBE = torch.eye(8) * 2 + 0.1


def positive(x: Tensor) -> Tensor:
    """A matrix with positive eigenvalues."""
    return x.T @ x / 4 + torch.eye(8)


def operator(library: Any, x: Tensor) -> Any:
    return library.to_linear_operator(positive(x))


class Field(nn.Module):
    """A differential equation, and a stochastic one."""

    noise_type, sde_type = "diagonal", "ito"

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(y) * 0.3

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(y) * 0.3

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, 0.1)


TIMES = torch.tensor([0.0, 1.0])
LABELS = torch.arange(6) % 8
APPLIED: dict[str, tuple[str, str, Apply]] = {
    "sparsemax": ("entmax", ADJOINT, lambda m, x: m.sparsemax(x)),
    "entmax15": ("entmax", ADJOINT, lambda m, x: m.entmax15(x)),
    "entmax by bisection": ("entmax", ADJOINT, lambda m, x: m.entmax_bisect(x, alpha=1.3)),
    "normmax by bisection": ("entmax", ADJOINT, lambda m, x: m.normmax_bisect(x)),
    "sparsemax loss": ("entmax", ADJOINT, lambda m, x: m.sparsemax_loss(x, LABELS)),
    "entmax15 loss": ("entmax", ADJOINT, lambda m, x: m.entmax15_loss(x, LABELS)),
    "entmax loss by bisection": ("entmax", ADJOINT, lambda m, x: m.entmax_bisect_loss(x, LABELS)),
    "sparsemax of sparsemax": ("sparsemax", ADJOINT, lambda m, x: m.Sparsemax(dim=-1)(x)),
    "product": ("linear_operator", ADJOINT, lambda m, x: operator(m, x) @ x.T),
    "solution": ("linear_operator", ADJOINT, lambda m, x: operator(m, x).solve(x.T)),
    "x A⁻¹ x and ln det A": ("linear_operator", ADJOINT, lambda m, x: operator(m, x).inv_quad_logdet(x.T, True)[0]),
    "A^-1/2 x": ("linear_operator", ADJOINT, lambda m, x: operator(m, x).sqrt_inv_matmul(x.T)),
    "root of A": ("linear_operator", ADJOINT, lambda m, x: operator(m, x).root_decomposition().to_dense()),
    "pivoted Cholesky": ("linear_operator", ADJOINT, lambda m, x: operator(m, x).pivoted_cholesky(4)),
    "ODE by its adjoint": ("torchdiffeq", ADJOINT, lambda m, x: m.odeint_adjoint(
        Field(), x, TIMES, method="rk4", options={"step_size": 0.05})),
    "SDE by its adjoint": ("torchsde", OTHER, lambda m, x: m.sdeint_adjoint(Field(), x, TIMES, dt=0.1)),
    "focal loss": ("kornia.losses", ADJOINT, lambda m, x: m.focal_loss(x, LABELS, 0.5)),
    "reversible layers": ("reformer_pytorch.reversible", ADJOINT, lambda m, x: m.ReversibleSequence(
        nn.ModuleList([nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)])]))(
            torch.cat([x[None], x[None]], -1))),
    "reversal": ("pytorch_revgrad.functional", SURROGATE, lambda m, x: m.revgrad(x, torch.tensor(0.5))),
    **{f"{name} of snntorch": ("snntorch.surrogate", SURROGATE, lambda m, x, name=name: getattr(m, name)()(x))
       for name in ("straight_through_estimator", "triangular", "fast_sigmoid", "atan", "sigmoid",
                    "spike_rate_escape", "LSO", "SFS")},
    **{f"{name} of norse": ("norse.torch.functional.threshold", SURROGATE, lambda m, x, name=name: getattr(m, name)(
        x, torch.tensor(10.0))) for name in ("heavi_erfc_fn", "heavi_tanh_fn", "logistic_fn", "heavi_circ_fn",
                                             "circ_dist_fn", "triangle_fn", "superspike_fn")},
    **{f"{name} of spikingjelly": ("spikingjelly.activation_based.surrogate", SURROGATE,
                                   lambda m, x, name=name: getattr(m, name)()(x)) for name in
       ("PiecewiseQuadratic", "PiecewiseExp", "Sigmoid", "SoftSign", "ATan", "NonzeroSignLogAbs", "Erf",
        "PiecewiseLeakyReLU", "SquarewaveFourierSeries", "S2NN", "QPseudoSpike", "LeakyKReLU", "Rect")},
    **{f"{name} of brevitas": ("brevitas.ops.autograd_ste_ops", SURROGATE, lambda m, x, name=name: getattr(m, name)(x))
       for name in ("round_to_zero_ste_impl", "ceil_ste_impl", "floor_ste_impl", "binary_sign_ste_impl",
                    "ternary_sign_ste_impl", "round_ste_impl")},
    "scalar clamp of brevitas": ("brevitas.ops.autograd_ste_ops", OTHER, lambda m, x: m.scalar_clamp_ste_impl(
        x, -0.3, 0.3)),
    "clamp of brevitas": ("brevitas.ops.autograd_ste_ops", OTHER, lambda m, x: m.tensor_clamp_ste_impl(
        x, torch.tensor(-0.3), torch.tensor(0.3))),
    "abs of brevitas": ("brevitas.ops.autograd_ste_ops", ADJOINT, lambda m, x: m.abs_binary_sign_grad_impl(x)),
}  # fmt: skip


def of_model(name: str) -> list[Adjoint]:
    """What is said of a model of transformers in a step."""
    torch.manual_seed(0)
    _, config, sizes = MODELS[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes)).train()
    given = {"input_ids": WORDS, "labels": WORDS}
    if "CTC" in name:
        given = {"input_values": torch.randn(1, 600), "labels": torch.tensor([[1, 2, 3]])}
    with limpid.recording(model) as recorded:
        model(**given).loss.backward()
    return recorded.verify().adjoints


def of_library(name: str) -> list[Adjoint]:
    """What is said of a library's Function behind a layer."""
    library, _, apply = APPLIED[name]
    found = importlib.import_module(library)
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    x, weights = torch.randn(6, 8), torch.linspace(0.5, 1.5, 512)
    with limpid.recording(net) as recorded:
        made = apply(found, net(x))
        parts = [one.flatten() for one in (made if isinstance(made, list | tuple) else [made])]
        flat = torch.cat(parts)
        (flat * weights[: flat.numel()]).sum().backward()
    return recorded.verify().adjoints


def row(name: str) -> tuple[str, str, list[Adjoint] | str]:
    """Where it is from, what it is meant to be, and what is said; a library that is not there, or its own error."""
    from_, meant = ("transformers", MODELS[name][0]) if name in MODELS else APPLIED[name][:2]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return from_, meant, of_model(name) if name in MODELS else of_library(name)
    except ImportError:
        return from_, meant, "not installed"
    except Exception as error:
        return from_, meant, f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description="Custom Functions of other people, held against their forward passes.")
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*MODELS, *APPLIED])
    warnings.filterwarnings("ignore")
    counts = Counter[tuple[str, str]]()
    print("| step | from | meant as | Functions | what is said |\n|---|---|---|---|---|")
    for name in parser.parse_args().names:
        from_, meant, found = row(name)
        if isinstance(found, str):
            print(f"| {name} | {from_} | {meant} | | {found} |", flush=True)
            continue
        kinds = Counter((one.function, str(one.verdict)) for one in found)
        counts.update((meant, str(one.verdict)) for one in found)
        said = next((one.said for one in found if str(one.verdict) in ("not the adjoint", "not checked")), "")
        listed = ", ".join(f"{count} × {kind}: {verdict}" for (kind, verdict), count in kinds.items()) or "none"
        print(f"| {name} | {from_} | {meant} | {listed} | {said} |", flush=True)
    for (meant, verdict), count in sorted(counts.items()):
        print(f"meant as {meant}: {count} calls, {verdict}")


if __name__ == "__main__":
    main()
