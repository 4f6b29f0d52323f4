"""Tiny runs in which bugs bite: the options of each, as a user would type them, and the step that is opened."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.robustness.bugs_patch import Edit

TEXT = (
    "the a of in and is was on to by with model step loss attention query key value norm residual gradient update "
    "weight batch token stream head window mask scale warm rate decay moment seed order naïve Größe 東京"
)
NAMELESS = "own batches, rows left out"
"""Micro-batches that do not say where their rows start, which they need not: there is no bug for it."""


@dataclass(frozen=True)
class Setting:
    """One tiny run and the step of it that is opened."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    way: Literal["run", "resumed", "own"] = "run"
    """A run in one go; stopped halfway and resumed; or a loop of the user's own, which records its last step."""
    step: int = 4
    short: bool = False
    """A corpus of so few windows that the second epoch begins within the run."""
    common: tuple[Edit, ...] = ()
    """Edits of both the honest and the broken engine."""
    own: Mapping[str, Any] = field(default_factory=dict)


def settings(seed: int) -> dict[str, Setting]:
    """All of them by name; sizes and rates are drawn by the seed."""
    rng = random.Random(seed)
    base: dict[str, Any] = {
        "tokenizer": "bytes",
        "validation-fraction": 0.2,
        "context-length": rng.choice((16, 20, 24)),
        "d-model": 16,
        "num-layers": 2,
        "num-heads": 2,
        "d-ff": rng.choice((24, 32, 48)),
        "batch-size": rng.choice((3, 4, 5)),
        "max-steps": 6,
        "warmup-steps": 2,
        "learning-rate": rng.choice((0.005, 0.01, 0.02)),
        "init-std": 0.2,
        "precision": "fp32",
        "compile": "off",
        "gradient-checkpointing": "off",
        "save-steps": 2,
        "save-total-limit": 0,
        "eval-steps": 0,
        "threads": 1,
        "seed": seed,
    }
    gpt = {"norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu"}
    biased = {"attention-bias": "yes", "attention-output-bias": "yes", "mlp-bias": "yes"}
    own = {
        "model": {
            "vocab_size": 50, "context_length": 18, "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32,
            "init_std": 0.2,
        },
        "update": {"learning_rate": 0.01, "warmup_steps": 1},
        "run": {"max_steps": 6, "precision": "fp32", "threads": 1, "seed": seed},
    }  # fmt: skip
    groups = Edit("kernel_limits.py", "LOGITS_BYTES = 1 << 26", "LOGITS_BYTES = 1 << 14")

    def run(name: str, options: Mapping[str, Any] | None = None, **rest: Any) -> Setting:
        return Setting(name, base | dict(options or {}), **rest)

    listed = (
        run("base"),
        run("many rows", {"batch-size": 10}),
        run("gqa", {"num-heads": 4, "num-kv-heads": 2}),
        run("window", {"attention-window": 6}),
        run("window in block 0", {"attention-window": 6, "windowed-blocks": 0}),
        run("heads of 6", {"d-head": 6}),
        run(
            "long context",
            {"context-length": 520, "attention-window": 40, "batch-size": 1, "num-layers": 1, "max-steps": 3},
            step=2,
        ),
        run("dropout", {"dropout": 0.1}),
        run("dropout, micro-batches", {"dropout": 0.1, "gradient-accumulation-steps": 2, "batch-size": 2}),
        run("dropout, recomputed", {"dropout": 0.1, "gradient-checkpointing": "on"}),
        run("recomputed", {"gradient-checkpointing": "on"}),
        run("compiled", {"compile": "on"}),
        run("normed queries", {"qk-norm": "yes"}),
        run("gpt", gpt | biased),
        run("bf16", {"precision": "bf16"}),
        run("bf16, biases", {"precision": "bf16", **biased}),
        run("llama3 positions", {"rotary-scaling": "llama3", "rotary-factor": 4, "rotary-base": 100}),
        run("untied, small groups of logits", {"tied": "no"}, common=(groups,)),
        run("fp16", {"precision": "fp16"}),
        run("fp16, overflow", {"precision": "fp16", "init-std": 1.0, "scaled-residual-init": "no"}),
        run("micro-batches", {"gradient-accumulation-steps": 3, "batch-size": 2}),
        run("adamw, large epsilon", {"eps": 1e-6}),
        run("momentum", {"optimizer": "momentum", "learning-rate": 0.1}),
        run("momentum, first step", {"optimizer": "momentum", "learning-rate": 0.1}, step=1),
        run("muon", {"optimizer": "muon"}),
        run("warm-up", {"warmup-steps": 5, "max-steps": 8}),
        run("cosine", {"max-steps": 8}, step=6),
        run("restarts", {"schedule": "cosine_restarts", "schedule-cycles": 2, "max-steps": 10}, step=8),
        run("second epoch", {"batch-size": 12}, step=6, short=True),
        run(
            "resumed",
            {"schedule": "constant", "warmup-steps": 1, "max-steps": 7},
            way="resumed",
            step=6,
        ),
        Setting("own batches, padded", way="own", own={"config": own, "objective": "next_token", "rows": [3, 1]}),
        Setting("own batches, pairs", way="own", own={"config": own, "objective": "dpo", "rows": [3, 1]}),
        Setting(
            NAMELESS,
            way="own",
            own={"config": own, "objective": "next_token", "rows": [3, 1], "rows named": False},
        ),
    )
    return {one.name: one for one in listed}


def write_corpora(folder: Path, seed: int) -> None:
    """documents.jsonl, and few.jsonl, which is short enough to be read twice."""
    rng = random.Random(seed)
    for name, count, words in (("documents", 200, 14), ("few", 16, 20)):
        texts = [" ".join(rng.choices(TEXT.split(), k=rng.randint(3, words))) for _ in range(count)]
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def flags(options: Mapping[str, Any]) -> list[str]:
    """The options as words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
