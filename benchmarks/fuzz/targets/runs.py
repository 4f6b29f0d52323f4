"""What a run's folder holds, read back: configuration, checkpoints, metrics, recorded steps, stored batches."""

import json
import shutil
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from benchmarks.fuzz.targets.target import SLOW, Read

from limpid.config.files import read_config
from limpid.data.batches import MicroBatch
from limpid.history.summary import summarise
from limpid.manifest import seal, write_manifest
from limpid.model.weights import load_weights
from limpid.run import Run
from limpid.source import open_source
from limpid.tracing import Trace
from limpid.tracing.record import Record
from limpid.tracing.recorded import Recorded
from limpid.training.start import open_run
from limpid.training.stored_batches import read_batch, write_batch


def _ending(data: bytes, otherwise: str) -> str:
    start = data.lstrip()[:2]
    return ".json" if start[:1] == b"{" else ".yaml" if start == b"--" else otherwise


def config(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Options in TOML, JSON, YAML, and a run's own."""
    own = (stock / "runs/a/config.toml").read_bytes()
    plain = {"model": {"d_model": 64, "num_heads": 4}, "data": {"paths": ["a"]}, "run": {"max_steps": 3}}
    yaml = b"---\nmodel:\n  d_model: 96\nrun:\n  max_steps: 3\n  record_steps: [1, 2]\n"

    def read(data: bytes) -> None:
        file = folder / f"config{_ending(data, '.toml')}"
        file.write_bytes(data)
        read_config(file)

    return [own, json.dumps(plain).encode(), yaml], read


def state(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """state.json of a checkpoint whose manifest agrees with it; what resumes from it, now and then."""
    run = Run(shutil.copytree(stock / "runs/a", folder / "a"))
    config, place = run.read_config(), run.checkpoint(2)

    def read(data: bytes) -> None:
        (place / "state.json").write_bytes(data)
        write_manifest(place)
        run.read_state(2)
        if zlib.crc32(data) % SLOW == 0:
            open_run(run, config, 2)

    return [(place / "state.json").read_bytes()], read


def manifest(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """The manifest itself."""
    run = Run(shutil.copytree(stock / "runs/a", folder / "a"))
    file = run.checkpoint(2) / "manifest.json"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        run.read_state(2)
        run.verify(2, "model.safetensors", "optimizer.safetensors")

    return [file.read_bytes()], read


def weights(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """The weights of a checkpoint, the manifest agreeing."""
    run = Run(shutil.copytree(stock / "runs/a", folder / "a"))
    file, source = run.checkpoint(2) / "model.safetensors", open_source(f"{run.path}@2")

    def read(data: bytes) -> None:
        file.write_bytes(data)
        write_manifest(file.parent)
        load_weights(source)  # type: ignore[arg-type]

    return [file.read_bytes()], read


def moments(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """The optimizer's state, as a resume reads it."""
    run = Run(shutil.copytree(stock / "runs/a", folder / "a"))
    config, file = run.read_config(), run.checkpoint(2) / "optimizer.safetensors"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        write_manifest(file.parent)
        open_run(run, config, 2)

    return [file.read_bytes()], read


def metrics(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """metrics.jsonl, as runs, plot, plan and a resume read it."""
    run = Run(shutil.copytree(stock / "runs/a", folder / "a"))

    def read(data: bytes) -> None:
        run.metrics_file.write_bytes(data)
        found = run.read_metrics()
        found.progress()
        found.loss_curve()
        for name in found.names:
            found.column(name)
        summarise(run)
        run.best_checkpoint()
        repr(run)

    return [run.metrics_file.read_bytes()], read


def recorded(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """A recorded step, sealed anew; opened, and redone now and then."""
    file = folder / "000002.safetensors"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(ValueError, OSError):
            seal(file)
        record = Record(file)
        record.require_whole()
        opened = Recorded(record)
        for name in opened.names():
            opened.value(name)
        if zlib.crc32(data) % SLOW == 0:
            Trace.open(file, on_disk=False).step  # noqa: B018  redone

    return [(stock / "runs/a/steps/000002.safetensors").read_bytes()], read


def batch(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Stored batches of a tuning run, sealed anew."""
    file, tokens = folder / "000001.safetensors", np.ones((2, 5), np.int64)
    arrays = {"tokens": tokens, "targets": tokens, "advantages": np.ones((2, 5), np.float32)}
    write_batch(file, [MicroBatch(arrays, (0, 5), {"reward": 0.5})])

    def read(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(ValueError, OSError):
            seal(file)
        read_batch(file)

    return [file.read_bytes()], read
