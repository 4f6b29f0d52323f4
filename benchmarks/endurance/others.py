"""transformers' Trainer and Lightning as subjects, resumed as their documentation says, with what they offer enabled.

Trainer: `resume_from_checkpoint=True`, `enable_jit_checkpoint` for SIGTERM. Lightning: `ckpt_path="last"`, `save_last`
and `save_on_exception`. A run of Lightning that is resumed within an epoch begins with that epoch's first rows again,
unless the loader has a state, and says so; and its checkpoints hold no state of the random numbers that dropout draws.
Here it is given both, which its hooks allow.
Where neither can read its newest checkpoint, a user removes that by hand and tries again.
"""

import importlib
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.endurance.process import Disturbance, Ended
from benchmarks.endurance.subject import Difference, Work

STEPS, SAVE_EVERY, ROWS, LENGTH, VOCABULARY = 40, 4, 4, 16, 64
PAUSE = 0.25
"""Seconds between steps of Trainer, whose checkpoint on SIGTERM comes 3 s later: all of them must take longer."""
TAKEN = "taken.txt"
"""A line per step, which the trainings' own logs may lose."""


def rows() -> list[list[int]]:
    """Tokens to train on, always the same."""
    rng = random.Random(7)
    return [[rng.randrange(VOCABULARY) for _ in range(LENGTH)] for _ in range(400)]


def taken(step: int) -> None:
    """Write down that a step was taken."""
    with open(TAKEN, "a") as stream:
        stream.write(f"{step}\n")


def trainer() -> None:
    """A training by transformers' Trainer."""
    import torch
    import transformers as tf
    from transformers.trainer_utils import get_last_checkpoint

    tf.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=LENGTH, attention_dropout=0.1,
    )  # fmt: skip
    arguments = tf.TrainingArguments(
        output_dir="runs/run", max_steps=STEPS, save_steps=SAVE_EVERY, logging_steps=1, use_cpu=True, report_to=[],
        per_device_train_batch_size=ROWS, learning_rate=2e-3, disable_tqdm=True, enable_jit_checkpoint=True,
    )  # fmt: skip

    class Taken(tf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            taken(state.global_step)
            time.sleep(PAUSE)

    data = [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in rows()]
    training = tf.Trainer(tf.LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[Taken()])
    there = Path("runs/run").is_dir() and get_last_checkpoint("runs/run")
    training.train(resume_from_checkpoint=True if there else None)


class ResumableRows:
    """Rows in an order of each epoch's own, with the state that Lightning saves and gives back."""

    def __init__(self) -> None:
        self.state = {"epoch": 0, "batch": 0}

    def __len__(self) -> int:
        return len(rows()) // ROWS

    def __iter__(self) -> Iterator[Any]:
        import torch

        order = torch.randperm(len(rows()), generator=torch.Generator().manual_seed(self.state["epoch"]))
        for batch in order.view(-1, ROWS)[self.state["batch"] :]:
            self.state["batch"] += 1
            yield [torch.tensor(rows())[batch]]
        self.state = {"epoch": self.state["epoch"] + 1, "batch": 0}

    def state_dict(self) -> dict[str, int]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def lightning() -> None:
    """A training by Lightning."""
    import lightning as L
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(
                torch.nn.Embedding(VOCABULARY, 24), torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Dropout(0.1),
                torch.nn.Linear(40, VOCABULARY),
            )  # fmt: skip

        def training_step(self, batch: Any, index: int) -> Any:
            taken(self.global_step + 1)
            loss = torch.nn.functional.cross_entropy(
                self.inner(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten()
            )
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 2e-3)

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            checkpoint["random"] = torch.get_rng_state()

        def on_load_checkpoint(self, checkpoint: Any) -> None:
            self.random = checkpoint["random"]

        def on_train_start(self) -> None:
            if hasattr(self, "random"):
                torch.set_rng_state(self.random)

    L.seed_everything(0, verbose=False)
    saving = ModelCheckpoint(
        "runs/run", every_n_train_steps=SAVE_EVERY, save_top_k=-1, save_last=True, save_on_exception=True
    )
    training = L.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, callbacks=[saving], logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    training.fit(Model(), ResumableRows(), ckpt_path="last")


TRAININGS = {"trainer": trainer, "lightning": lightning}
MODULES = {"trainer": ("transformers.trainer", "transformers.models.llama"), "lightning": ("lightning.pytorch",)}


@dataclass(frozen=True)
class OtherTool:
    """A training of another tool, begun and resumed by the same script."""

    name: str
    processes: int = 1
    one_line_errors: bool = False

    def lay(self, folder: Path) -> None:
        (folder / "runs").mkdir()
        for module in MODULES[self.name]:  # in this process: forked ones need not import them
            importlib.import_module(module)

    def begin(self) -> Work:
        def work(disturbance: Disturbance) -> None:
            with disturbance.watching():
                TRAININGS[self.name]()

        return work

    def again(self, folder: Path, ended: Ended) -> Work | None:
        """The same script; once it has failed at a checkpoint, without that."""
        tried = folder / "tried"
        if ended.code > 0 and tried.exists() and (newest := self._checkpoints(folder)):
            removed = newest[-1]
            shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
            with (folder / "by-hand.txt").open("a") as stream:
                stream.write(f"{removed.name}\n")
        tried.touch()
        return self.begin()

    def _checkpoints(self, folder: Path) -> list[Path]:
        """The newest last; Lightning's `last` is what it reads."""
        run = folder / "runs" / "run"
        if self.name == "trainer":
            return sorted(run.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
        return sorted(run.glob("*.ckpt"), key=lambda one: one.stat().st_mtime)

    def checkpoint(self, folder: Path) -> list[Path]:
        newest = self._checkpoints(folder)[-1:]
        return [file for one in newest for file in ([*one.iterdir()] if one.is_dir() else [one])]

    def logs(self, folder: Path) -> dict[Path, int]:
        return {}

    def steps(self, folder: Path) -> tuple[int, int]:
        """Steps taken, and that of the newest checkpoint, which its name says."""
        steps = [int(line) for line in (folder / TAKEN).read_text().split()] if (folder / TAKEN).is_file() else [0]
        names = [one.stem for one in self._checkpoints(folder) if not one.stem.startswith("last")]
        numbers = [int(name.replace("=", "-").rpartition("-")[2]) for name in names if name[-1:].isdigit()]
        return steps[-1], max(numbers, default=0)

    def differences(self, folder: Path, whole: Path) -> list[Difference]:
        found = [Difference("unreadable", name) for name in self._by_hand(folder)]
        ours, theirs = (_weights(self.name, one / "runs" / "run") for one in (folder, whole))
        if ours is None:
            return [*found, Difference("missing", "the last checkpoint")]
        same = ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in theirs)
        return found if same else [*found, Difference("different", "final weights")]

    def _by_hand(self, folder: Path) -> list[str]:
        file = folder / "by-hand.txt"
        return file.read_text().split() if file.is_file() else []


def _weights(name: str, run: Path) -> Any:
    import torch
    from safetensors.torch import load_file

    if name == "trainer":
        file = run / f"checkpoint-{STEPS}" / "model.safetensors"
        return load_file(file) if file.is_file() else None
    files = sorted(run.glob(f"*step={STEPS}*.ckpt"))
    return torch.load(files[0], weights_only=False)["state_dict"] if files else None
