"""Steps of `limpid tune` beside TRL's trainers: the same model, records, batch and precision, in turns.

python -m benchmarks.tuning [sft] [dpo] [grpo] [--rounds 3] [--precision fp32]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
warnings.simplefilter("ignore")

import torch  # noqa: E402

import limpid  # noqa: E402

BATCH, STEPS, UNTIMED = 8, 12, 4
LENGTH, GENERATIONS, COMPLETION = 256, 8, 32
WORDS = "the small old river stone hears a bird that finds some green tree and not the dog".split()  # noqa: SIM905


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objectives", nargs="*", default=["sft", "dpo", "grpo"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tuning-"))
    os.chdir(folder)
    model = prepare(folder)
    for objective in given.objectives:
        found: dict[str, list[Step]] = {"limpid": [], "trl": []}
        for number in range(given.rounds):
            for side, steps in found.items():
                steps.append(in_own_process(side, objective, model, given.precision, f"{objective}-{number}"))
        kinds = ("seconds", "processor_seconds", "peak_megabytes")
        print(f"{objective} {given.precision}: {'; '.join(beside(found, kind) for kind in kinds)}", flush=True)


class Step(NamedTuple):
    """The median step: by the clock, which other programs slow down, and of all threads together, which they do not.

    And the most that the process held resident from its start to the end of training, libraries included.
    """

    seconds: float
    processor_seconds: float
    peak_megabytes: float


def in_own_process(side: str, *what: Any) -> Step:
    """Measured in a new process, so that a peak is of one training alone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured_here, side, *what).result()


def measured_here(side: str, objective: str, model: Path, precision: str, name: str) -> Step:
    return OURS[objective](model, precision, name) if side == "limpid" else THEIRS[objective](model, precision)


def beside(found: dict[str, list[Step]], kind: str) -> str:
    """What each takes, and how many times more TRL does: the median and the extremes of the rounds."""
    a, b = ([getattr(step, kind) for step in found[side]] for side in ("limpid", "trl"))
    ratios = [theirs / ours for ours, theirs in zip(a, b, strict=True)]
    return (
        f"{kind.replace('_', ' ')} limpid {statistics.median(a):.3f}, trl {statistics.median(b):.3f}, "
        f"×{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
    )


def median_step(times: list[tuple[float, float]]) -> Step:
    """Of the steps between these times, without the first ones."""
    steps = [
        [later - before for before, later in itertools.pairwise(one)][UNTIMED:] for one in zip(*times, strict=True)
    ]
    status = Path(
        "/proc/self/status"
    ).read_text()  # getrusage's peak begins at that of the process that started this one
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6
    return Step(*map(statistics.median, steps), peak_megabytes=peak)


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def prepare(folder: Path) -> Path:
    """A Llama of 4 layers × 256 with 16,384 rows of vocabulary, as small ones have, and records to tune it on."""
    random.seed(0)
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(random.choices(WORDS, k=60)) for _ in range(400)))
    sizes = {"d_model": 256, "num_layers": 4, "num_heads": 4, "context_length": 2 * LENGTH, "vocab_size": 16384}
    run = {"max_steps": 10, "batch_size": 4, "eval_steps": 0, "doctor": False, "precision": "fp32"}
    data = {"paths": [str(text)], "tokenizer_vocab_size": 300}
    base = limpid.train({"model": sizes, "run": run, "data": data}, "base")
    limpid.export(base, folder / "model")

    def said(count: int) -> str:
        return " ".join(random.choices(WORDS, k=count))

    kinds: dict[str, Callable[[], dict[str, str]]] = {
        "sft": lambda: {"prompt": said(8), "completion": " " + said(LENGTH // 4)},
        "dpo": lambda: {"prompt": said(8), "chosen": " " + said(LENGTH // 4), "rejected": " " + said(LENGTH // 4)},
        "grpo": lambda: {"prompt": said(8)},
    }
    for name, record in kinds.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record()) + "\n" for _ in range(BATCH * STEPS)))
    return folder / "model"


class Clock(limpid.Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step(self, *_: Any) -> None:
        self.times.append(now())


def limpid_step(objective: str, tune: dict[str, Any], rows: int = BATCH) -> Callable[[Path, str, str], Step]:
    def measured(model: Path, precision: str, name: str) -> Step:
        run = {"max_steps": STEPS, "batch_size": rows, "eval_steps": 0, "save_steps": 0, "doctor": False,
               "precision": precision}  # fmt: skip
        clock = Clock()
        limpid.tune(objective, model, f"{objective}.jsonl", {"run": run, "tune": tune}, name, callbacks=[clock])
        return median_step(clock.times)

    return measured


def trl_step(objective: str) -> Callable[[Path, str], Step]:
    def measured(model: Path, precision: str) -> Step:
        import trl
        from datasets import load_dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.pad_token = tokenizer.eos_token
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        records = load_dataset("json", data_files=f"{objective}.jsonl", split="train")
        usual = {
            "output_dir": "trl", "max_steps": STEPS, "per_device_train_batch_size": BATCH, "report_to": "none",
            "save_strategy": "no", "bf16": precision == "bf16", "use_cpu": True, "logging_steps": 1000,
            "learning_rate": 1e-5, "disable_tqdm": True, "gradient_checkpointing": False,
        }  # fmt: skip
        times: list[tuple[float, float]] = []

        class StepEnd(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                times.append(now())

        match objective:
            case "sft":
                trainer: Any = trl.SFTTrainer(policy, trl.SFTConfig(**usual, max_length=2 * LENGTH),
                                              train_dataset=records, processing_class=tokenizer)  # fmt: skip
            case "dpo":
                reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
                trainer = trl.DPOTrainer(policy, reference, trl.DPOConfig(**usual, max_length=2 * LENGTH),
                                         train_dataset=records, processing_class=tokenizer)  # fmt: skip
            case _:
                usual["per_device_train_batch_size"] = 2 * GENERATIONS
                settings = trl.GRPOConfig(**usual, num_generations=GENERATIONS, max_completion_length=COMPLETION)
                trainer = trl.GRPOTrainer(policy, reward_funcs=rewarded, args=settings, train_dataset=records,
                                          processing_class=tokenizer)  # fmt: skip
        trainer.add_callback(StepEnd())
        trainer.train()
        return median_step(times)

    return measured


def rewarded(completions: list[str], **columns: Any) -> list[float]:
    """How many different words an answer has."""
    return [float(len(set(one.split()))) for one in completions]


GRPO = {
    "rollouts": {"reward": ["benchmarks.tuning:rewarded"], "num_generations": GENERATIONS},
    "options": {"max_completion_length": COMPLETION},
}
OURS = {"sft": limpid_step("sft", {}), "dpo": limpid_step("dpo", {}), "grpo": limpid_step("grpo", GRPO, rows=2)}
THEIRS = {name: trl_step(name) for name in OURS}

if __name__ == "__main__":
    main()
