"""The C++ of this folder as a library: compiled at its first use on a machine, kept in the user's cache."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from limpid.errors import ConfigError
from limpid.files import cache_folder, one_line

SOURCES = Path(__file__).parent
NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512_bf16")
"""What the processor must know, as /proc/cpuinfo writes it."""
FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared",
    "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mfma",
)  # fmt: skip
SECONDS = 120
"""Processor time that a compiler may take, as others may use the processor too; it takes about five."""
PATIENCE = 10 * SECONDS
"""Seconds by the clock after which it is given up whatever it does: it may wait for a disk that never answers."""
DIGEST = ".blake2b"
"""The ending of the file that holds the digest of the library beside it."""


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, compiled where they are not yet; None where they are missing, or the compiler fails."""
    found = None if _lacking() else _loaded()
    return found if isinstance(found, ctypes.CDLL) else None


def missing() -> str:
    """Why there are no kernels here; empty where there are, or will be. Compiles nothing."""
    return _lacking() or (failure() if _loaded.cache_info().currsize else "")


def failure() -> str:
    """Why they are not here although nothing lacks; empty where they are. Compiles them where they are not yet."""
    found = _loaded()
    return found if isinstance(found, str) else ""


@cache
def _lacking() -> str:
    flags = processor_flags()
    lacking = [flag for flag in NEEDED if flag not in flags]
    if lacking:
        return f"the processor has no {lacking[0]}"
    if "amx_bf16" in flags:
        return "the processor has AMX, whose products PyTorch's libraries use"
    return "" if compiler() else "no C++ compiler (g++, clang++) is found"


@cache
def _loaded() -> ctypes.CDLL | str:
    """The kernels, or why they cannot be had."""
    try:
        return ctypes.CDLL(str(_built()))
    except subprocess.TimeoutExpired as error:
        return f"{compiler()} takes longer than {error.timeout:.0f} s"
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else f"exit code {error.returncode}")
        return f"{compiler()} fails: {first.strip()}"
    except (OSError, ConfigError) as error:  # of writing it, of loading it, of a cache that lies nowhere
        return one_line(error)


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
    return not missing() and not _is_whole(_file())


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


@cache
def _file() -> Path:
    """Where the library lies, by compiler, flags and text."""
    command = [str(compiler()), "--version"]
    try:
        version = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        version = ""
    texts = [file.read_text(encoding="utf-8") for file in (*_sources(), *sorted(SOURCES.glob("*.h")))]
    name = hashlib.blake2b("\0".join([version, *FLAGS, *texts]).encode(), digest_size=16).hexdigest()
    return cache_folder() / "native" / f"{name}.so"


def _built() -> Path:
    """The library's file, made first where it is not there whole; several processes may make it at once."""
    file = _file()
    if not _is_whole(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        _sweep(file.parent)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            command = [str(compiler()), *FLAGS, *map(str, _sources()), "-o", str(made)]
            beside = os.environ | {"TMPDIR": folder}  # what the compiler leaves when it is stopped goes, too
            _run(command, beside)
            digest = Path(folder) / "digest"
            digest.write_text(_digest(made), encoding="ascii")
            made.replace(file)
            digest.replace(file.with_suffix(DIGEST))
    return file


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Run a compiler for so much time of the processor.

    Raises  subprocess.TimeoutExpired where that is not enough; CalledProcessError where it fails
    """
    limited = ["sh", "-c", 'ulimit -S -t "$0"; exec "$@"', str(SECONDS), *command]  # of each process that it starts
    in_english = environment | {"LC_ALL": "C"}
    try:
        subprocess.run(limited, capture_output=True, timeout=PATIENCE, check=True, env=in_english)
    except subprocess.CalledProcessError as error:
        # The kernel says which limit it was: the compiler's own end, or what its driver tells of a part's end.
        if error.returncode == -signal.SIGXCPU or b"CPU time limit exceeded" in error.stderr:
            raise subprocess.TimeoutExpired(command, SECONDS) from error
        raise


def _sweep(cache: Path) -> None:
    """Remove what processes that were killed while they compiled have left: folders older than any compiler takes."""
    for folder in cache.glob("tmp*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > PATIENCE:
                shutil.rmtree(folder, ignore_errors=True)


def _is_whole(file: Path) -> bool:
    """Whether the library is as it was made: a program that loads one cut short, as by a lost disk, is killed."""
    try:
        return file.with_suffix(DIGEST).read_text(encoding="ascii") == _digest(file)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
