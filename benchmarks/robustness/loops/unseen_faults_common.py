"""What these loops share: watching from transformers' Trainer and from Lightning, small pictures, a measure at the
end."""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import lightning
import torch
from benchmarks.robustness.loops.case import Run
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

warnings.filterwarnings("ignore", module="lightning")
for _name in ("lightning.pytorch", "lightning.fabric", "lightning"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def outcome(run: Run, measure: Callable[[], float]) -> None:
    """Keep how to measure, after the loop, what it was for (lower is better); only a proof calls it."""
    vars(run)["outcome"] = measure


@torch.no_grad()
def held_out(model: nn.Module, batches: Iterable[Any], loss: Callable[[nn.Module, Any], Tensor]) -> float:
    model.eval()
    values = [float(loss(model, batch)) for batch in batches]
    return sum(values) / len(values)


class Rows(Dataset[Any]):
    """A list of examples."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


class Telling(TrainerCallback):  # type: ignore[misc]
    """Tells the doctor from transformers' Trainer; `loss` and `batches` are put here by WatchedTrainer."""

    def __init__(self, run: Run) -> None:
        self.run, self.doctor = run, None
        self.losses: list[Tensor] = []
        self.batches: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
        self.doctor = self.run.watch(kept["model"], kept["optimizer"], scheduler=kept["lr_scheduler"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
        loss = torch.stack(self.losses).sum()
        assert self.doctor is not None
        self.doctor.step(loss, self.batches[0] if len(self.batches) == 1 else list(self.batches))
        self.run.note(loss)
        self.losses.clear()
        self.batches.clear()


class Watching:
    """In front of a Trainer: remembers, for the callback, what the model was given in the step and its loss."""

    telling: Telling
    in_step = False

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **options: Any) -> Any:
        if self.in_step:
            self.telling.batches.append(dict(inputs))
        base: Any = super()
        return base.compute_loss(model, inputs, *args, **options)

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        self.in_step = True
        base: Any = super()
        loss: Tensor = base.training_step(*args, **options)
        self.in_step = False
        self.telling.losses.append(loss.detach())
        return loss


class WatchedTrainer(Watching, Trainer):  # type: ignore[misc]
    """The usual Trainer, watched."""


def trainer(
    run: Run,
    model: nn.Module,
    rows: list[Any],
    steps: int,
    collate: Any = stack,
    kind: type[WatchedTrainer] = WatchedTrainer,
    optimizers: Any = (None, None),
    checks: list[Any] | None = None,
    **options: Any,
) -> Any:
    """A Trainer with this project's settings, ready for `train()`."""
    settings: dict[str, Any] = {"per_device_train_batch_size": 16, "learning_rate": 3e-3, "weight_decay": 0.01}
    settings |= {"warmup_steps": 5, "lr_scheduler_type": "cosine", "max_grad_norm": 1.0}
    settings |= {"max_steps": steps, "report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
    settings |= {
        "disable_tqdm": True,
        "use_cpu": True,
        "remove_unused_columns": False,
        "seed": run.draw.randrange(9999),
    }
    arguments = TrainingArguments(output_dir=tempfile.gettempdir() + "/newfaults", **(settings | options))
    data: dict[str, Any] = {"train_dataset": Rows(rows), "eval_dataset": Rows(checks) if checks else None}
    out = kind(model=model, args=arguments, data_collator=collate, optimizers=optimizers, **data)
    out.telling = Telling(run)
    out.add_callback(out.telling)
    out.remove_callback(PrinterCallback)
    return out


class Lit(lightning.LightningModule):
    """A network, its loss and its optimizers, for Lightning."""

    def __init__(self, net: nn.Module, loss: Callable[[nn.Module, Any], Tensor], optimizers: Any = None) -> None:
        super().__init__()
        self.net, self.measure, self.make = net, loss, optimizers

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.measure(self.net, batch)

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters()) if self.make else torch.optim.AdamW(self.parameters(), lr=3e-3)


class Teller(lightning.Callback):
    """Tells the doctor from Lightning."""

    def __init__(self, run: Run) -> None:
        self.run, self.doctor = run, None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        schedule = trainer.lr_scheduler_configs
        options = {"scheduler": schedule[0].scheduler} if schedule else {}
        self.doctor = self.run.watch(pl_module, trainer.optimizers[0], **options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.doctor is not None
        self.doctor.step(outputs["loss"], batch)
        self.run.note(outputs["loss"])


def fit(run: Run, module: lightning.LightningModule, loader: DataLoader[Any], epochs: int, **options: Any) -> None:
    settings: dict[str, Any] = {"max_epochs": epochs, "accelerator": "cpu", "logger": False, "barebones": False}
    settings |= {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    engine = lightning.Trainer(**(settings | options), callbacks=[Teller(run)])
    engine.fit(module, loader)


def bars(count: int, size: int = 12, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Grey pictures of one bar: class 0 and 1 lying and standing, brighter than the ground; 2 and 3 darker."""
    classes = torch.randint(0, 4, (count,))
    pictures = 0.5 + noise * torch.randn(count, 1, size, size)
    for row in range(count):
        at, start = int(torch.randint(1, size - 2, ())), int(torch.randint(0, size - 6, ()))
        value = 0.4 if classes[row] < 2 else -0.4
        if classes[row] % 2 == 0:
            pictures[row, 0, at, start : start + 6] += value
        else:
            pictures[row, 0, start : start + 6, at] += value
    return pictures, classes


def small_cnn(classes: int, channels: int = 1, width: int = 12, norm: bool = True) -> nn.Sequential:
    def layer(a: int, b: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU()]

    parts = layer(channels, width, 1) + layer(width, 2 * width, 2)
    return nn.Sequential(*parts, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes))


def chain(states: int, seed: int, sharp: float = 2.0) -> Tensor:
    """The log-probabilities of a random Markov chain: row = from, column = to; low numbers are more frequent."""
    generator = torch.Generator().manual_seed(seed)
    table = sharp * torch.randn(states, states, generator=generator) - 1.5 * torch.arange(states) / states
    return table.log_softmax(-1)


def walks(table: Tensor, rows: int, length: int) -> Tensor:
    """Rows drawn from a chain."""
    out = torch.zeros(rows, length, dtype=torch.long)
    out[:, 0] = torch.randint(0, len(table), (rows,))
    chance = table.exp()
    for t in range(1, length):
        out[:, t] = torch.multinomial(chance[out[:, t - 1]], 1).squeeze(1)
    return out
