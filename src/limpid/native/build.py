"""The C++ of this folder as a library: compiled at its first use on a machine, kept in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from limpid.files import cache_folder

SOURCES = Path(__file__).parent
NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512_bf16")
"""What the processor must know, as /proc/cpuinfo writes it."""
FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared",
    "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mfma",
)  # fmt: skip
SECONDS = 120.0
"""How long a compiler may take; it takes about two."""


@cache
def missing() -> str:
    """Why there are no kernels here; empty where there are. Compiles nothing."""
    flags = processor_flags()
    lacking = [flag for flag in NEEDED if flag not in flags]
    if lacking:
        return f"the processor has no {lacking[0]}"
    if "amx_bf16" in flags:
        return "the processor has AMX, whose products PyTorch's libraries use"
    return "" if compiler() else "no C++ compiler (g++, clang++) is found"


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, compiled where they are not yet; None where they are missing, or the compiler fails."""
    if missing():
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError):
        return None


def processor_flags() -> frozenset[str]:
    """What the first processor knows; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def compiler() -> str | None:
    """The path of a C++ compiler: $CXX, g++ or clang++."""
    names = (os.environ.get("CXX", "g++"), "g++", "clang++")
    return next((found for found in map(shutil.which, names) if found), None)


def is_to_be_compiled() -> bool:
    """Whether the first call of `library` will take the time of a compiler."""
    return not missing() and not _file().exists()


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


@cache
def _file() -> Path:
    """Where the library lies, by compiler, flags and text."""
    command = [str(compiler()), "--version"]
    try:
        version = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        version = ""
    texts = [file.read_text(encoding="utf-8") for file in (*_sources(), *sorted(SOURCES.glob("*.h")))]
    name = hashlib.blake2b("\0".join([version, *FLAGS, *texts]).encode(), digest_size=16).hexdigest()
    return cache_folder() / "native" / f"{name}.so"


def _built() -> Path:
    """The library's file, made first where it is not there; several processes may make it at once."""
    file = _file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            command = [str(compiler()), *FLAGS, *map(str, _sources()), "-o", str(made)]
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
            made.replace(file)
    return file
