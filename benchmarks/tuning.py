"""Steps of `limpid tune` beside TRL's trainers: the same model, records, batch and precision, in turns.

python -m benchmarks.tuning [sft] [dpo] [grpo] [--rounds 3] [--precision fp32]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        ours, theirs = OURS[objective], THEIRS[objective]
        seconds: dict[str, list[float]] = {"limpid": [], "trl": []}
        for number in range(given.rounds):
            seconds["limpid"].append(ours(model, given.precision, f"{objective}-{number}"))
            seconds["trl"].append(theirs(model, given.precision))
        ratios = [b / a for a, b in zip(seconds["limpid"], seconds["trl"], strict=True)]
        print(
            f"{objective} {given.precision}: limpid {statistics.median(seconds['limpid']):.3f} s a step, "
            f"trl {statistics.median(seconds['trl']):.3f} s; ×{statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} … {max(ratios):.2f})",
            flush=True,
        )


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


def limpid_step(objective: str, tune: dict[str, Any], rows: int = BATCH) -> Callable[[Path, str, str], float]:
    """Seconds of a step, the median after the first ones."""

    def measured(model: Path, precision: str, name: str) -> float:
        run = {"max_steps": STEPS, "batch_size": rows, "eval_steps": 0, "save_steps": 0, "doctor": False,
               "precision": precision}  # fmt: skip
        found = limpid.tune(objective, model, f"{objective}.jsonl", {"run": run, "tune": tune}, name)
        return statistics.median(line["seconds"] for line in found.read_metrics().steps[UNTIMED:])

    return measured


def trl_step(objective: str) -> Callable[[Path, str], float]:
    def measured(model: Path, precision: str) -> float:
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
        times: list[float] = []

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                times.append(time.perf_counter())

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
        trainer.add_callback(Clock())
        trainer.train()
        times.append(time.perf_counter())
        steps = [after - before for before, after in itertools.pairwise(times)]
        return statistics.median(steps[UNTIMED:])

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
