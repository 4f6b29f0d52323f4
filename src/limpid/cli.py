"""The command line: finds the verb, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from limpid.errors import ConfigError, LimpidError
from limpid.files import one_line
from limpid.terminal import say, take_any_text

HELP = """usage: limpid VERB [what] [options]

Train transformer language models, and open any training step.

  train [PATH …]           train a model on text; or on Python's own library
  data WHAT PATH …         tokenize, statistics, duplicates, decontaminate
  tune OBJECTIVE MODEL PATH  sft, dpo, grpo … on records; --lora
  trace RUN                a step, redone in float64 and compared; --brief
  explain RUN ENTRY        one number: how it was made, its gradient, its update
  inspect MODEL            who wrote the logit, lens, attention; --landscape
  compare A B              rounding or bug? two ways to the same numbers
  evaluate MODEL [TEXT …]  loss, bits per byte, calibration; --against, --tasks
  doctor RUN               what is wrong with a run, ours or another tool's log
  equations [WORD …]       every equation: source, gradient, code; --measure
  learn [EXERCISE]         exercises with numbers of your own, graded; --seed
  plan [WHAT]              FLOPs, memory, time, money; plan fit, sweep, rate
  generate MODEL PROMPT    continue a prompt
  chat MODEL               talk to a model
  compress MODEL FILE      any file, by a model's predictions
  decompress FILE          a compressed file, back
  serve [RUNS]             runs, their steps and models, in a page
  runs [RUN …]             runs, one of them, several side by side; --delete
  plot RUN …               loss, learning rate, gradient norm, speed, drawn
  export MODEL OUTPUT      a Hugging Face folder, or a GGUF file for llama.cpp
  completion SHELL         what makes bash, zsh or tcsh complete these words

RUN is a run's folder, its name under runs/, or `last`; RUN@STEP and RUN@best
are checkpoints. MODEL is any of them, a Hugging Face folder, ORG/NAME on the
hub (its cache first), an adapter's folder, or MODEL+ADAPTER.

`limpid help VERB` lists a verb's options.
Exit code: 0 fine, 1 a check failed or training broke off, 2 wrong use.
"""
VERBS = (
    "train", "data", "tune", "trace", "explain", "compare", "inspect", "evaluate", "doctor", "equations", "learn",
    "plan", "generate", "chat", "compress", "decompress", "serve", "runs", "plot", "export", "completion",
)  # fmt: skip
"""Each is `verb` in its file under verbs/, which is loaded when it is asked for."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that no memory is left: Python's, PyTorch's for a device or processor, a mapping's."""
    if isinstance(error, SystemError):  # a C extension failed without a reason, as one that gets no memory may
        return not _memory_is_left()
    own = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return own or any(said in str(error) for said in ("DefaultCPUAllocator", os.strerror(errno.ENOMEM)))


def _memory_is_left(size: int = 1 << 26) -> bool:
    """Whether the system still gives this process so many bytes."""
    try:
        mmap.mmap(-1, size).close()
    except OSError:
        return False
    return True


def _complain(line: str) -> None:
    """Say an error, as far as standard error takes it: a log may be what has no room left."""
    with contextlib.suppress(OSError):
        say(f"limpid: error: {line}", file=sys.stderr)


def _answer_interrupt() -> None:
    """Say that Ctrl-C was heard, on a line of its own: a terminal has written ^C."""
    with contextlib.suppress(OSError, AttributeError):  # standard error may be gone, or None
        say(("\n" if sys.stderr.isatty() else "") + "limpid: stopped by Ctrl-C", file=sys.stderr)


def _as_typed(error: ConfigError, words: Sequence[str]) -> str:
    """What an error says, options spelled as flags; of `plan fit` those of plan_fit."""
    from limpid.config.spelling import flags_of, with_dashes

    module = sys.modules.get("limpid.verbs." + "_".join(words[:2])) or sys.modules.get(f"limpid.verbs.{words[0]}")
    return str(error) if module is None else with_dashes(str(error), flags_of(module))


def wait_briefly() -> None:
    """Let threads that wait for each other sleep as soon as waiting has cost what waking up costs, some 100 µs.

    GNU's OpenMP lets them spin for milliseconds: on processors that others use too, decoding takes ten times as long.
    Never more than twice the best is lost by it (Karlin et al. 1991). A look takes 25 ns on an AMD, 50 on an Intel:
    less time, and they would sleep while a token is chosen. It reads this when PyTorch loads it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "4000")


def _done(words: Sequence[str]) -> int:
    """Do what was typed; returns the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        say(HELP, end="")
        return 0
    if words[0] in ("-V", "--version"):
        import limpid

        say(f"limpid {limpid.__version__}")
        return 0
    if words[0] not in VERBS:
        from limpid.config.options import word_of

        word_of(tuple(VERBS), words[0], "the verb")
    return int(import_module(f"limpid.verbs.{words[0]}").verb(words[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    take_any_text()
    wait_briefly()
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) > 1 and words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        return _done(words)
    except LimpidError as error:
        said = _as_typed(error, words) if isinstance(error, ConfigError) else str(error)
        if not error.told:
            _complain(said)
        return 2
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        if not out_of_memory(error):
            raise
        _complain(f"memory ran out: {one_line(error)}; make it smaller, or close other programs")
        return 2
    except KeyboardInterrupt:
        _answer_interrupt()
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # the system's refusal of something that no room has words for
        what = "" if error.filename is None else f" {error.filename}"
        _complain(f"the system refuses{what}: {error.strerror or error}")
        return 2
