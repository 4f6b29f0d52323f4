"""How long it takes to redo and compare a step, and with how much memory: the default model, and GPT-2-124M's shape.

Each is recorded by the engine first (not timed), then opened in a fresh process.

    python benchmarks/trace.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

RECORD = """
import sys
from pathlib import Path
import numpy as np
from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.training.state import fresh_state
from limpid.training.record import record_step

model, rows, precision = {
    "default": (ModelConfig(vocab_size=2048), 16, "bf16"),
    "gpt2": (
        ModelConfig(
            vocab_size=50257, context_length=128, d_model=768, num_layers=12, num_heads=12, norm="layer",
            positions="learned", mlp="plain", activation="gelu_tanh", attention_bias=True, attention_output_bias=True,
            mlp_bias=True,
        ), 1, "fp32",
    ),
}[sys.argv[1]]
config = TrainConfig(model, run=RunConfig(precision=precision, batch_size=rows))
tokens = np.random.default_rng(0).integers(0, model.vocab_size, (rows, model.context_length + 1))
batch = [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, tuple(range(rows)))]
record_step(Path(sys.argv[2]), fresh_state(config), batch, config, run="benchmark", token_text=str)
"""
OPEN = """
import io, resource, sys, time
from pathlib import Path
from rich.console import Console
from limpid.training.allocator import keep_freed_memory
from limpid.tracing import show_step
keep_freed_memory()
start = time.perf_counter()
code = show_step(Path(sys.argv[1]), console=Console(file=io.StringIO()))
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, code)
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    table = Table(title="a recorded step, redone in float64 and compared")
    for column in ("model", "seconds", "peak memory, GB", "agrees"):
        table.add_column(column, justify="left" if column == "model" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for name, shown in (("default", "default, 16 × 128 tokens"), ("gpt2", "GPT-2 124M, 1 × 128 tokens")):
            file = str(Path(folder) / f"{name}.safetensors")
            subprocess.run([sys.executable, "-c", RECORD, name, file], check=True)
            done = subprocess.run([sys.executable, "-c", OPEN, file], check=True, capture_output=True, text=True)
            seconds, memory, code = done.stdout.split()
            table.add_row(shown, f"{float(seconds):.1f}", f"{float(memory):.1f}", "yes" if code == "0" else "NO")
            Path(file).unlink()
    Console().print(table)


if __name__ == "__main__":
    main()
