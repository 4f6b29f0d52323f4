"""Bugs of the rest of the model: norms, positions, gates, embedding, stream, loss, other paths."""

from __future__ import annotations

from benchmarks.robustness.bugs_answers import FROM_THE_LOSS
from benchmarks.robustness.bugs_patch import Bug, Edit

BLOCKS = "model/transformer.py"
LOSS_KERNEL = "model/kernels/linear_cross_entropy.py"
NORM_KERNEL = "model/kernels/rms_norm.py"

TURNED = tuple(f"blocks.*.attention.{name}_rotated (forward)" for name in ("query", "key"))

NORMS = (
    Bug(
        "epsilon-outside-the-root",
        "norm",
        "The fused RMS norm divides by rms(x) + ε instead of √(mean square + ε).",
        (Edit(NORM_KERNEL, ".add_(eps).rsqrt_()", ".sqrt_().add_(eps).reciprocal_()"),),
        ("blocks.*.norm1 (forward)",),
    ),
    Bug(
        "norm-gradient-forgets-the-gain",
        "norm",
        "The part of the norm's gradient along x is formed before the gain is applied; the gain is near 1.",
        (Edit(NORM_KERNEL, "torch.linalg.vecdot(x_bar, x_hat)", "torch.linalg.vecdot(y_bar, x_hat)"),),
        ("blocks.1.residual2 (backward)", "final_norm (backward)"),
    ),
    Bug(
        "gain-gradient-misses-a-row",
        "norm",
        "The sum over positions that makes the gradient of a gain stops before the last one.",
        (
            Edit(
                NORM_KERNEL,
                "weight_bar = (y_bar * x_hat).flatten(0, -2).sum(0)",
                "weight_bar = (y_bar * x_hat).flatten(0, -2)[:-1].sum(0)",
            ),
        ),
        ("*norm*.weight (backward)",),
    ),
    Bug(
        "keys-normed-by-the-queries-gain",
        "norm",
        "Keys go through the queries' norm; its gain starts as the same ones.",
        (Edit("model/attention.py", "self.key_norm(key, mode))", "self.query_norm(key, mode))"),),
        ("blocks.*.attention.key_norm (forward)",),
        "normed queries",
    ),
    Bug(
        "unbiased-variance",
        "norm",
        "Layer norm divides by the unbiased standard deviation, over d - 1.",
        (
            Edit(
                "model/norm.py",
                "return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)",
                "spread = x.var(-1, keepdim=True) + self.eps\n"
                "        return (x - x.mean(-1, keepdim=True)) * spread.rsqrt() * self.weight + self.bias",
            ),
        ),
        ("blocks.*.norm1 (forward)",),
        "gpt",
    ),
    Bug(
        "norm-of-a-rounded-stream",
        "mixed precision",
        "The stream is cast to bf16 before the norm instead of after it.",
        (Edit(BLOCKS, "self.norm1(x, mode).to(compute)", "self.norm1(x.to(compute), mode)"),),
        ("blocks.*.norm1 (forward)",),
        "bf16",
    ),
)

POSITIONS = (
    Bug(
        "rotation-not-undone",
        "rotation",
        "Backward turns the gradients of queries and keys on by the angle instead of back.",
        (
            Edit(
                "model/kernels/rotation.py",
                "FusedRotation.apply(y_bar, cos, -sin, ctx.halves)",
                "FusedRotation.apply(y_bar, cos, sin, ctx.halves)",
            ),
        ),
        ("blocks.*.attention.key (backward)", "blocks.*.attention.query (backward)"),
        subtle=False,
    ),
    Bug(
        "angles-in-bf16",
        "rotation",
        "Position times frequency is formed in bf16 where the rest of the step is.",
        (
            Edit(
                "model/embedding.py",
                "(positions[..., None].double() * self.frequencies.to(positions.device))[..., None, :]",
                "(positions[..., None].double() * self.frequencies.to(positions.device)).bfloat16()"
                ".double()[..., None, :]",
            ),
        ),
        TURNED,
        "bf16",
    ),
    Bug(
        "llama3-from-the-wrong-context",
        "rotation",
        "The turns that decide which frequencies are stretched are counted over the new context, not the original.",
        (
            Edit(
                "model/embedding.py",
                "config.sizes.rotary_original_context * plain / (2 * math.pi)",
                "config.context_length * plain / (2 * math.pi)",
            ),
        ),
        TURNED,
        "llama3 positions",
    ),
    Bug(
        "positions-one-late",
        "embedding",
        "The table of positions is read one row further on; the last position wraps around.",
        (
            Edit(
                "model/embedding.py",
                "added = self.positions(positions)",
                "added = self.positions((positions + 1) % self.config.context_length)",
            ),
        ),
        ("embed.positions (forward)",),
        "gpt",
    ),
)

STREAM = (
    Bug(
        "gate-and-up-swapped",
        "gate",
        "The nonlinearity goes over the wrong half: gate · f(up).",
        (Edit("model/mlp.py", "self.activation(gate) * up", "self.activation(up) * gate"),),
        ("blocks.*.mlp.hidden (forward)",),
        subtle=False,
    ),
    Bug(
        "gelu-by-tanh",
        "gate",
        "GELU is the tanh approximation where the exact one is asked for.",
        (Edit("model/mlp.py", '"gelu": F.gelu,', '"gelu": lambda x: F.gelu(x, approximate="tanh"),'),),
        ("blocks.*.mlp.hidden (forward)",),
        "gpt",
    ),
    Bug(
        "bias-dropped-in-half-precision",
        "mixed precision",
        "Linear maps leave their bias out where they run in two bytes.",
        (
            Edit(
                "model/linear.py",
                "bias = None if self.bias is None else",
                "bias = None if self.bias is None or input.dtype.itemsize < 4 else",
            ),
        ),
        ("*.bias (backward)", *(f"blocks.0.attention.{name} (forward)" for name in ("query", "key", "value"))),
        "bf16, biases",
    ),
    Bug(
        "end-of-text-taken-for-padding",
        "embedding",
        "The embedding's padding index is the end-of-text token, so that one row gets no gradient as an input.",
        (
            Edit(
                "model/embedding.py",
                "self.tokens = Table(config.vocab_size, config.d_model)",
                "self.tokens = Table(config.vocab_size, config.d_model, padding_idx=config.vocab_size - 1)",
            ),
        ),
        ("embed.tokens.weight (backward)",),
        "many rows",
    ),
    Bug(
        "tied-head-detached",
        "tied embeddings",
        "The tied output matrix is detached: the embedding learns from its inputs only.",
        (
            Edit(
                "objectives/next_token.py",
                "model.output_matrix, targets, labels, mode.loss_scale",
                "model.output_matrix.detach(), targets, labels, mode.loss_scale",
            ),
        ),
        ("embed.tokens.weight (backward)",),
        subtle=False,
    ),
    Bug(
        "residual-from-the-normed-input",
        "residual",
        "Attention's output is added to the normed input instead of to the stream.",
        (Edit(BLOCKS, "x + written) if self.residual1", "read + written) if self.residual1"),),
        ("blocks.*.residual1 (forward)",),
        subtle=False,
    ),
    Bug(
        "stream-rounded-to-bf16",
        "mixed precision",
        "The stream passes through bf16 after every MLP.",
        (Edit(BLOCKS, "x + self.mlp(read, mode))", "(x + self.mlp(read, mode)).to(compute).to(x.dtype))"),),
        ("blocks.*.residual2 (forward)",),
        "bf16",
    ),
)

LOSS = (
    Bug(
        "z-loss-left-in-the-gradient",
        "cross-entropy",
        "The fused loss's gradient still holds a z-loss of coefficient 1e-4; the loss itself does not.",
        (
            Edit(
                LOSS_KERNEL,
                "p.mul_(weights / mass)",
                "p.mul_(weights / mass * (1 + 2e-4 * (mass.log() + largest)))",
            ),
        ),
        FROM_THE_LOSS,
    ),
    Bug(
        "softmax-of-logits-in-bf16",
        "cross-entropy",
        "Logits are not widened before exponentials and sums.",
        (Edit(LOSS_KERNEL, "wide = torch.promote_types(hidden.dtype, torch.float32)", "wide = hidden.dtype"),),
        ("loss (forward)", "log_probabilities (forward)", *FROM_THE_LOSS),
        "bf16",
    ),
    Bug(
        "last-group-overwrites",
        "cross-entropy",
        "Each group of rows overwrites the output matrix's gradient instead of adding to it.",
        (Edit(LOSS_KERNEL, "weight_bar.add_(product)", "product.to(matrix.dtype)"),),
        ("logits.weight (backward)",),
        "untied, small groups of logits",
        subtle=False,
    ),
    Bug(
        "padding-gets-a-gradient",
        "cross-entropy",
        "Positions without a label are left out of the loss but not out of its gradient.",
        (
            Edit(
                LOSS_KERNEL,
                "weights = weight * labelled[:, None].to(p.dtype)",
                "weights = torch.full_like(mass, weight)",
            ),
        ),
        FROM_THE_LOSS,
        "own batches, padded",
    ),
)

PATHS = (
    Bug(
        "epsilon-of-the-compiled-norm",
        "compiled path",
        "Only what is compiled takes float32's epsilon for the norm's ε.",
        (
            Edit(
                "model/norm.py",
                "return rms_norm(x, self.weight, self.eps)",
                "return rms_norm(x, self.weight, self.eps if mode.plain else 1.1920929e-07)",
            ),
        ),
        ("blocks.0.residual2 (forward)", "blocks.*.norm* (forward)", "blocks.0.attention.* (forward)"),
        "compiled",
    ),
    Bug(
        "other-masks-when-recomputed",
        "checkpointed path",
        "Blocks that are computed again draw dropout masks anew: backward does not belong to forward.",
        (Edit(BLOCKS, "use_reentrant=False)", "use_reentrant=False, preserve_rng_state=False)"),),
        ("blocks.1.* (backward)",),
        "dropout, recomputed",
    ),
    Bug(
        "recomputed-block-cuts-the-stream",
        "checkpointed path",
        "The input of a recomputed block is detached: no gradient passes below the last block.",
        (Edit(BLOCKS, "checkpoint(run, block, x, *", "checkpoint(run, block, x.detach().requires_grad_(), *"),),
        ("blocks.0.* (backward)", "embed.* (backward)"),
        "recomputed",
        subtle=False,
    ),
)

MODEL_BUGS = (*NORMS, *POSITIONS, *STREAM, *LOSS, *PATHS)
