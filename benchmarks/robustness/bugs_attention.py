"""Bugs of attention: its kernels forward and backward, grouped heads, windows, dropout."""

from __future__ import annotations

from benchmarks.robustness.bugs_patch import Bug, Edit

KERNEL = "model/kernels/attention.py"
BLOCKS = "model/transformer.py"

ATTENDED = tuple(f"blocks.*.attention.{name} (forward)" for name in ("scores", "weights", "mixed"))
SCORED = tuple(
    f"blocks.*.attention.{name} (backward)" for name in ("weights", "scores", "key_rotated", "query_rotated")
)

ATTENTION_BUGS = (
    Bug(
        "key-gradient-unscaled",
        "attention",
        "The kernel's backward pass leaves 1/√d_head out of the gradient of the keys.",
        (
            Edit(
                KERNEL,
                "key_bar = torch.bmm(scores_bar.transpose(1, 2), query).mul_(scale)",
                "key_bar = torch.bmm(scores_bar.transpose(1, 2), query)",
            ),
        ),
        ("blocks.*.attention.key_rotated (backward)",),
        subtle=False,
    ),
    Bug(
        "softmax-gradient-without-row-sum",
        "attention",
        "Backward through the softmax forgets to subtract each row's Σ weight · gradient.",
        (
            Edit(
                KERNEL,
                """torch.ops.aten._softmax_backward_data(
            torch.bmm(mixed_bar, value.transpose(1, 2)), weights, -1, weights.dtype
        )""",
                "weights * torch.bmm(mixed_bar, value.transpose(1, 2))",
            ),
        ),
        SCORED,
        subtle=False,
    ),
    Bug(
        "row-sum-misses-last-key",
        "attention",
        "Backward through the softmax sums each row up to, not including, its last key: only the last query feels it.",
        (
            Edit(
                KERNEL,
                """torch.ops.aten._softmax_backward_data(
            torch.bmm(mixed_bar, value.transpose(1, 2)), weights, -1, weights.dtype
        )""",
                """torch.bmm(mixed_bar, value.transpose(1, 2))
        scores_bar = weights * (scores_bar - (weights * scores_bar)[..., :-1].sum(-1, keepdim=True))""",
            ),
        ),
        SCORED,
    ),
    Bug(
        "value-gradient-of-one-head",
        "grouped heads",
        "The gradient of a shared value head takes the first query head of its group only.",
        (
            Edit(
                KERNEL,
                "value_bar = torch.bmm(weights.transpose(1, 2), mixed_bar)",
                "own = key.shape[1]\n"
                "        value_bar = torch.bmm(weights[:, :own].transpose(1, 2), mixed_bar[:, :own])",
            ),
        ),
        ("blocks.*.attention.value (backward)",),
        "gqa",
    ),
    Bug(
        "groups-tiled",
        "grouped heads",
        "Query heads meet key heads in turn (h mod G) instead of group by group.",
        (
            Edit(
                KERNEL,
                "queries = query.reshape(groups, -1, d_head)",
                "turns = query.unflatten(1, (-1, key.shape[1])).transpose(1, 2)\n"
                "    queries = turns.reshape(groups, -1, d_head)",
            ),
            Edit(
                KERNEL,
                "return mixed.view(query.shape)",
                "return mixed.view(turns.shape).transpose(1, 2).reshape(query.shape)",
            ),
        ),
        ATTENDED,
        "gqa",
        subtle=False,
    ),
    Bug(
        "one-key-of-the-future",
        "attention",
        "The causal mask lets every query see the key after its own.",
        (
            Edit(
                KERNEL,
                "torch.ones(positions, positions, dtype=torch.bool, device=device).tril()",
                "torch.ones(positions, positions, dtype=torch.bool, device=device).tril(1)",
            ),
        ),
        ATTENDED,
        subtle=False,
    ),
    Bug(
        "window-one-too-wide",
        "sliding window",
        "The window reaches back over window positions instead of window - 1.",
        (Edit(KERNEL, "visible.triu(1 - window)", "visible.triu(-window)"),),
        ATTENDED,
        "window",
    ),
    Bug(
        "window-in-every-block",
        "sliding window",
        "The block that should see everything gets the first block's window too.",
        (Edit(BLOCKS, "masks.get(window), cache, mode)", "masks.get(windows[0]), cache, mode)"),),
        tuple(name.replace("*", "1") for name in ATTENDED),
        "window in block 0",
        subtle=False,
    ),
    Bug(
        "window-too-wide-in-the-long-kernel",
        "sliding window",
        "The kernel for long contexts is handed a window one wider than the short one's.",
        (
            Edit(
                KERNEL,
                "visible = causal_mask(positions, window, query.device)",
                "visible = causal_mask(positions, window + 1, query.device)",
            ),
        ),
        ATTENDED,
        "long context",
    ),
    Bug(
        "scale-of-padded-heads",
        "attention",
        "Heads of 6 are scaled as if padded to 8: 1/√8 instead of 1/√6, forward and backward alike.",
        tuple(
            Edit(
                KERNEL,
                f"scale = 1 / math.sqrt(query.shape[-1])\n        {follows}",
                f"scale = 1 / math.sqrt(-(-query.shape[-1] // 8) * 8)\n        {follows}",
            )
            for follows in ("weights = ", "query_bar = ")
        ),
        ATTENDED,
        "heads of 6",
        subtle=False,
    ),
    Bug(
        "dropout-scaled-to-first-order",
        "dropout",
        "What is kept is multiplied by 1 + p instead of 1/(1 - p): 1% at p = 0.1.",
        (Edit("model/dropout.py", "x * kept / (1 - self.probability)", "x * kept * (1 + self.probability)"),),
        ("*dropped (forward)",),
        "dropout",
    ),
    Bug(
        "same-mask-in-every-micro-batch",
        "dropout",
        "The seed of the dropout masks forgets the micro-batch: all of a step drop the same places.",
        (
            Edit(
                "training/step.py",
                "dropout_seed(config.run.seed, state.step + 1, index)",
                "dropout_seed(config.run.seed, state.step + 1, 0)",
            ),
        ),
        ("kept", "mask", "masks", "dropout", "seed"),
        "dropout, micro-batches",
    ),
    Bug(
        "dropout-seeded-once",
        "replay",
        "The generator of dropout masks is seeded at the first step only, and no checkpoint holds its state.",
        (
            Edit(
                "training/step.py",
                "if config.model.dropout:",
                "if config.model.dropout and state.step + index == 0:",
            ),
        ),
        ("replay", "replayed", "kept", "mask", "masks", "dropout", "seed"),
        "dropout",
    ),
)
