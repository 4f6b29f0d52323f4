"""Runs of Muon in sizes that a processor trains: what `limpid train --minutes` chooses sizes by.

The fast recipe, but with a plain MLP and squared relu: gated ones reach the same losses within 0.07 nats, and their few
steps at the largest sizes would say more of the learning rate than of the size.

Each run has its own whole schedule. Parameters, tokens and validation loss go to benchmarks/small_scale.csv, which
`limpid plan fit benchmarks/small_scale.csv` fits; runs that the file holds already are not trained again.

    python benchmarks/small_scale.py [--largest 8e12]
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import tempfile
from pathlib import Path

from limpid.api import train
from limpid.config import TrainConfig
from limpid.config.options import from_dict
from limpid.config.recipes import recipe
from limpid.planning import parameter_count
from limpid.training.time_budget import tokens_per_step, with_width

TABLE = Path(__file__).with_suffix(".csv")
WIDTHS = (64, 96, 128, 192, 256, 320)
STEPS = (60, 120, 240, 480, 960, 1920, 3840)
VOCABULARY = 2048


def configured(width: int, steps: int) -> TrainConfig:
    """The recipe in one size and length, judged on 64 validation batches at its end."""
    config = from_dict(TrainConfig, {
        **recipe("fast"),
        "model": {**recipe("fast")["model"], "mlp": "plain", "activation": "relu2"},
        "run": {"max_steps": steps, "eval_steps": 0, "eval_batches": 64, "save_steps": 0, "compile": "off"},
    })  # fmt: skip
    return dataclasses.replace(
        config, model=with_width(dataclasses.replace(config.model, vocab_size=VOCABULARY), width)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=float, default=8e12, help="FLOPs (6 N D) of the longest run")
    options = parser.parse_args()
    done = list(csv.DictReader(TABLE.open())) if TABLE.is_file() else []
    rows = [
        {"parameters": int(row["parameters"]), "tokens": int(row["tokens"]), "loss": float(row["loss"])} for row in done
    ]
    for steps in STEPS:
        for width in WIDTHS:
            config = configured(width, steps)
            parameters, tokens = parameter_count(config.model), steps * tokens_per_step(config)
            known = any(row["parameters"] == parameters and row["tokens"] == tokens for row in rows)
            if known or 6 * parameters * tokens > options.largest:
                continue
            with tempfile.TemporaryDirectory() as folder:
                run = train(config, str(Path(folder) / "run"))
                entries = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
            loss = next(entry["eval_loss"] for entry in reversed(entries) if "eval_loss" in entry)
            rows.append({"parameters": parameters, "tokens": tokens, "loss": round(loss, 5)})
            print(f"{width} wide, {parameters:,} parameters, {tokens:,} tokens: {loss:.4f} nats per token", flush=True)
            with TABLE.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["parameters", "tokens", "loss"], lineterminator="\n")
                writer.writeheader()
                writer.writerows(sorted(rows, key=lambda row: (row["parameters"], row["tokens"])))


if __name__ == "__main__":
    main()
