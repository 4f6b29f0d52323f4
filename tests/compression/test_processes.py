"""What one process compresses every other one gives back: compiled there or found compiled, threads, processors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from tests.evaluation.small_models import LoadedModel, small_model

from limpid.compression.container import CODED, Frame, frames, read_header
from limpid.compression.predictor import Predictor

FAMILIES = {
    "fast": {"qk_norm": True, "mlp": "plain", "activation": "relu2", "tied": False},
    "gpt2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
    "llama": {"num_kv_heads": 1, "tied": False},
}  # fmt: skip
OLD_PROCESSOR = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR AVX2 FMA3",
}
"""Every library computes as on a processor whose vectors have 128 bits."""


def drawn(one: LoadedModel, count: int) -> bytes:
    """Bytes that a model wrote, so that it knows them well."""
    predictor, made, draw = Predictor(one.transformer, one.start), bytearray(), np.random.default_rng(0)
    while len(made) < count:
        p = predictor.weights()[:256].astype(np.float64) ** 3
        made.append(int(draw.choice(256, p=p / p.sum())))
        predictor.append(made[-1])
    return bytes(made)


def in_a_process(folder: Path, threads: int, **environment: str) -> set[str]:
    """What a fresh process did: compressed where nothing was compressed yet, else restored."""
    counts = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, "-m", "tests.compression.elsewhere", str(folder)],
        capture_output=True, text=True, check=False,
        env=os.environ | counts | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line.split()[0] for line in done.stdout.splitlines()}


def test_every_process_gives_back_what_another_one_compressed(tmp_path: Path) -> None:
    for name, sizes in FAMILIES.items():
        one = small_model(context=32, **sizes)
        saved = {"sizes": sizes, "weights": one.transformer.state_dict(), "content": drawn(one, 150)}
        torch.save(saved, tmp_path / f"{name}.pt")
    just_compiled = {"NUMBA_CACHE_DIR": str(tmp_path / "compiled"), "TMPDIR": str(tmp_path)}  # a cache and its lock
    assert in_a_process(tmp_path, threads=2, **just_compiled, **OLD_PROCESSOR) == {"compressed"}
    for name in FAMILIES:
        with (tmp_path / f"{name}.int8").open("rb") as file:
            read_header(file, name)
            assert {part.kind for part in frames(file, name) if isinstance(part, Frame)} == {CODED}
    assert in_a_process(tmp_path, threads=1, OMP_WAIT_POLICY="active") == {"restored"}  # as the suite has compiled it
