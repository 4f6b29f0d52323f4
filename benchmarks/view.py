"""What the page waits for: each answer's bytes and milliseconds over loopback, the median of several, and in
parentheses the milliseconds that processors computed, which other work on the machine changes less.

python -m benchmarks.view runs        a list of 200 runs of 100,000 steps, and the curves of one
python -m benchmarks.view step        a recorded step of 10 million parameters: document, slices, tiles, explain
python -m benchmarks.view large       arrays of a step of GPT-2, 124 million parameters: 8 GB, never read whole

The first two make what they need in a temporary folder, minutes on two cores; the third a sparse file, of which only
the token embedding has numbers, one of them NaN.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import uvicorn

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import to_dict
from limpid.quantities import parameters
from limpid.run import Run
from limpid.view.server import application
from limpid.view.serving import listen

TIMES = 7
RUNS, STEPS = 200, 100_000
TEN_MILLION = ModelConfig(
    vocab_size=2048, context_length=256, d_model=384, num_layers=6, num_heads=6, d_ff=1024, tied=True
)
GPT2 = ModelConfig(
    vocab_size=50257, context_length=1024, d_model=768, num_layers=12, num_heads=12, d_ff=3072, norm="layer",
    positions="learned", mlp="plain", activation="gelu_tanh", attention_bias=True, attention_output_bias=True,
    mlp_bias=True, tied=True,
)  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[httpx2.Client]:
    """A client of the server, on a real socket."""
    with listen("127.0.0.1", 0, 8000) as own:
        server = uvicorn.Server(uvicorn.Config(application(folder), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([own],))
        thread.start()
        try:
            yield httpx2.Client(base_url=f"http://127.0.0.1:{own.getsockname()[1]}", timeout=600)
        finally:
            server.should_exit = True
            thread.join()


def timed(client: httpx2.Client, what: str, *paths: str, times: int = TIMES) -> None:
    """Print how long the first answer took, and the median of the next ones; of both, what processors computed."""
    walls, works, size = [], [], 0
    for place in range(times + 1):
        began, computed = time.perf_counter(), time.process_time()
        answer = client.get(paths[place % len(paths)])
        walls.append(1000 * (time.perf_counter() - began))
        works.append(1000 * (time.process_time() - computed))  # of server and client: they are one process
        assert answer.status_code == 200, answer.text
        size = int(answer.headers.get("content-length", len(answer.content)))
    then = f"{statistics.median(walls[1:]):7.1f} ({statistics.median(works[1:]):.1f})" if times else ""
    print(f"{what:46} {size:>10,} bytes  first {walls[0]:8.1f} ({works[0]:.1f}) ms  then {then} ms", flush=True)


def runs() -> None:
    """Files share their bytes, so that 200 runs of 100,000 steps fit the disk: 7 GB to whoever reads them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = TrainConfig(
            dataclasses.replace(TEN_MILLION), DataConfig(paths=("text",)), run=RunConfig(precision="fp32")
        )
        lines = (
            {
                "step": step, "loss": 2 + 5 / step**0.3, "grad_norm_before_clip": 1.0, "grad_norm_after_clip": 1.0,
                "learning_rate": 1e-3, "epoch": step / 1e4, "num_tokens": 8192 * step, "seconds": 0.25,
                "tokens_per_second": 32768.0, "peak_share": 0.4, "process_peak_bytes": 10**9, "updated": True,
                "max_steps": STEPS, "train/loss": 2 + 5 / step**0.3, "train/grad_norm": 1.0,
                "train/learning_rate": 1e-3,
            }
            for step in range(1, STEPS + 1)
        )  # fmt: skip
        for number in range(RUNS):
            run = Run(folder / f"{number:03d}")
            run.path.mkdir()
            run.write_config(config, config)
            if number:
                os.link(folder / "000/metrics.jsonl", run.metrics_file)
            else:
                run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{RUNS} runs of {STEPS:,} steps, {(folder / '000/metrics.jsonl').stat().st_size / 1e6:.0f} MB each")
        with served(folder) as client:
            timed(client, "the list of all runs", "/api/runs")
            timed(client, "one run", "/api/runs/007")
            timed(client, "three curves of 100,000 steps", "/api/runs/007/metrics?columns=loss,mean_loss,learning_rate")
            timed(client, "the same of a run not seen before", "/api/runs/008/metrics?columns=loss", times=0)


def recorded(folder: Path, model: ModelConfig, batch_size: int) -> Run:
    """A real run of two steps in a folder, the second one recorded and redone."""
    import limpid
    from limpid.view import worker

    text = folder / "text.txt"
    text.write_text(" ".join(f"word{i * i % 997}" for i in range(60_000)))
    config = TrainConfig(
        model, DataConfig(paths=(str(text),)), UpdateConfig(),
        RunConfig(max_steps=2, batch_size=batch_size, eval_steps=0, save_steps=1, precision="fp32", doctor=False),
    )  # fmt: skip
    run = limpid.train(config, str(folder / "runs/001"))
    size = sum(math.prod(one.shape) for one in parameters(run.read_config().model))
    began = time.perf_counter()
    worker.record({"run": str(run.path), "step": 2}, lambda doing, done, total: None)
    print(f"{size:,} parameters, {run.recorded_step(2).stat().st_size / 1e6:,.0f} MB; recorded and redone in "
          f"{time.perf_counter() - began:.0f} s")  # fmt: skip
    return run


def step() -> None:
    """A real step, recorded and redone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded(folder, TEN_MILLION, 4)
        at = "/api/runs/001/steps/2"
        scores = "blocks.3.attention.scores"
        with served(folder / "runs") as client:
            timed(client, "the step's document", at)
            timed(client, "a slice: scores of one head", *(f"{at}/slice?entry={scores}[0,{h}]" for h in range(6)))
            timed(client, "its gradient", *(f"{at}/slice?entry={scores}[0,{h}]&kind=gradient" for h in range(6)))
            timed(
                client,
                "a tile: the token embedding",
                *(f"{at}/tiles?name=embed.tokens.weight&level={k}" for k in range(5)),
            )
            timed(client, "a tile: logits of a row", *(f"{at}/tiles?name=logits&index={r}&level=4" for r in range(4)))
            timed(client, "one entry explained", *(f"{at}/explain?entry={scores}[0,{h},9,{h}]" for h in range(6)))
            timed(client, "one logit explained", *(f"{at}/explain?entry=logits[0,9,{v}]" for v in range(6)))
            timed(
                client, "one weight explained", *(f"{at}/explain?entry=blocks.0.mlp.up.weight[{v},5]" for v in range(6))
            )
            timed(client, "share of the bound: normed, redone at once", f"{at}/slice?entry=final_norm[0]&kind=share")


def large() -> None:
    """A record as docs/record.md has it, mostly holes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = TrainConfig(
            GPT2, DataConfig(paths=("text",)), run=RunConfig(max_steps=2, batch_size=1, precision="fp32")
        )
        run = Run(folder / "001")
        run.path.mkdir()
        run.write_config(config, config)
        run.recorded_step(1).parent.mkdir()
        size = sparse_record(run.recorded_step(1), config)
        print(f"a record of {size / 1e9:.1f} GB")
        at, table = "/api/runs/001/steps/1", "embed.tokens.weight"
        top = 9  # 50257 × 768 in a tile of 128 × 128
        with served(folder) as client:
            timed(client, "the first tile of 38.6 million entries", f"{at}/tiles?name={table}&level={top}")
            tiles = [f"{at}/tiles?name={table}&level={k}&row={r}" for k in (0, 2, 3, 5) for r in range(2)]
            timed(client, "tiles of it at other zooms", *tiles, times=len(tiles))
            timed(
                client,
                "a slice: 64 rows of it",
                *(f"{at}/slice?entry={table}[{64 * k}:{64 * k + 64}]" for k in range(8)),
            )
            timed(
                client,
                "a tile: scores of one head",
                *(f"{at}/tiles?name=blocks.5.attention.scores&index=0,{h}&level=3" for h in range(8)),
            )
            timed(client, "a tile: logits, 51 million entries", f"{at}/tiles?name=logits&index=0&level=9")
            timed(
                client, "one weight explained", *(f"{at}/explain?entry=blocks.0.mlp.up.weight[{v},5]" for v in range(8))
            )
        from limpid.machine import process_peak

        print(f"the process held {(process_peak() or 0) / 1e9:.2f} GB at most")


def sparse_record(file: Path, config: TrainConfig) -> int:
    """Every tensor of a recorded step, of zeros that take no place on the disk, but for the token embedding."""
    from limpid.objectives import NEXT_TOKEN, to_document

    model, rows, length = config.model, 1, config.model.context_length
    sizes = {"batch": rows, "position": length, "query": length, "key": length, "vocab": model.vocab_size,
             "d_model": model.d_model, "head": model.num_heads, "kv_head": model.sizes.num_kv_heads,
             "d_head": model.sizes.d_head, "d_ff": model.sizes.d_ff}  # fmt: skip
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "batch/tokens": ("I64", (rows, length)), "batch/targets": ("I64", (rows, length)),
        "fast/grad_norm": ("F32", ()),
    }  # fmt: skip
    for one in parameters(model):
        kinds = ("before/{}", "after/{}", "before/m/{}", "before/v/{}", "after/m/{}", "after/v/{}", "fast/grad({})")
        tensors |= {kind.format(one.name): ("F32", one.shape) for kind in kinds}
    for quantity in NEXT_TOKEN.quantities(model):
        shape = tuple(sizes[axis] for axis in quantity.axes)
        tensors |= {f"fast/{quantity.name}": ("F32", shape), f"fast/grad({quantity.name})": ("F32", shape)}
    meta = {
        "version": 1, "run": "001", "step": 1, "update_number": 1, "updated": True, "config": to_dict(config),
        "objective": to_document(NEXT_TOKEN), "precision": {"parameters": "fp32", "compute": "fp32"},
        "learning_rate": 1e-3, "loss_scale": 1.0, "labels": rows * length, "token_texts": {"0": "!"},
        "micro_batches": [{"rows": [0], "tokens": rows * length, "labels": rows * length, "loss": "10.8"}],
    }  # fmt: skip
    header, at = {"__metadata__": {"limpid": json.dumps(meta)}}, 0
    for name, (word, shape) in tensors.items():
        size = math.prod(shape) * (8 if word == "I64" else 4)
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + at)
        stream.seek(8 + len(text) + header["before/embed.tokens.weight"]["data_offsets"][0])
        table = np.random.default_rng(0).standard_normal((model.vocab_size, model.d_model), np.float32)
        table[40_000, 500] = np.nan
        stream.write(table.tobytes())
    return file.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["runs", "step", "large"])
    for word in parser.parse_args().what:
        {"runs": runs, "step": step, "large": large}[word]()


if __name__ == "__main__":
    main()
