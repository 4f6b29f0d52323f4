"""Public issues re-enacted with Lightning."""

import logging
import warnings
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import Decoder, outcome
from benchmarks.robustness.loops.public_issues_rates import held_out
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

FAMILY = "public issues: Lightning"


class Telling(Callback):
    """The doctor's place in Lightning: told when the optimizer has stepped."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps = 0
        self.batches: list[Any] = []
        self.loss = 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        configs = trainer.lr_scheduler_configs
        scheduler = configs[0].scheduler if configs else None
        self.doctor = self.run.watch(module, trainer.optimizers[0], scheduler=scheduler)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.batches.append(batch)
        self.loss += float(outputs["loss"])
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            loss = self.loss / len(self.batches)
            self.doctor.step(loss, self.batches if len(self.batches) > 1 else self.batches[0])
            self.run.note(loss)
            self.batches, self.loss = [], 0.0


def fit(run: Run, module: LightningModule, train: Any, held: Any = None, **options: Any) -> None:
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    settings: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    settings |= {"enable_checkpointing": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    Trainer(callbacks=[Telling(run)], **(settings | options)).fit(module, train, held)


def pictures(count: int, scale: float, shift: float) -> tuple[Tensor, Tensor]:
    """Noise with a bright bar in one of four directions."""
    labels = torch.randint(0, 4, (count,))
    x = 0.6 * torch.randn(count, 1, 12, 12)
    for row, label in enumerate(labels.tolist()):
        at = int(torch.randint(2, 10, ()))
        bar = torch.eye(12).roll(at - 6, 1) if label > 1 else torch.zeros(12, 12).index_fill(0, torch.tensor(at), 1.0)
        x[row, 0] += 1.5 * {0: bar, 1: bar.T, 2: bar, 3: bar.flip(1)}[label]
    return x * scale + shift, labels


def backbone() -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in ((1, 12), (12, 16), (16, 24)):
        parts += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveMaxPool2d(1), nn.Flatten())


class Probe(LightningModule):
    """A frozen pretrained backbone in evaluation mode, and a head to train."""

    def __init__(self, trunk: nn.Sequential, all_to_train: bool) -> None:
        super().__init__()
        self.trunk, self.head, self.all_to_train = trunk, nn.Linear(24, 4), all_to_train
        self.trunk.requires_grad_(False).eval()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.head(self.trunk(batch[0])), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        F.cross_entropy(self.head(self.trunk(batch[0])), batch[1])

    def on_validation_model_train(self) -> None:
        if self.all_to_train:
            self.train()  # as the loop did for everyone
        else:
            self.head.train()
            self.training = True

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.head.parameters(), lr=1e-2)


@fault(
    "issue-lightning-2551",
    FAMILY,
    (r"batch ?norm|running|statistic|buffer|training mode|eval", r"frozen|backbone|trunk|valid|mode"),
)
def frozen_backbone_in_training_mode(run: Run, slip: bool) -> None:
    """Lightning-AI/pytorch-lightning issue 2551 (pull request 18951): the validation loop ended by putting the whole
    module into training mode, also a frozen backbone that its owner had put into evaluation mode; from the first
    validation on, its batch normalization used each batch's statistics and its running averages moved."""
    trunk = backbone()
    head = nn.Linear(24, 4)
    first = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=5e-3)
    for _ in range(80):
        x, y = pictures(32, 1.0, 0.0)
        first.zero_grad()
        F.cross_entropy(head(trunk(x)), y).backward()
        first.step()
    kept = {n: b.clone() for n, b in trunk.named_buffers() if "running" in n}
    module = Probe(trunk, slip)
    train, held = TensorDataset(*pictures(160, 1.0, 0.4)), TensorDataset(*pictures(64, 1.0, 0.4))

    def moved() -> float:
        return sum(float((b - kept[n]).abs().mean()) for n, b in trunk.named_buffers() if n in kept)

    outcome(run, moved)
    fit(run, module, DataLoader(train, 16, shuffle=True), DataLoader(held, 32), max_epochs=6)


class Language(LightningModule):
    def __init__(self, updates: int) -> None:
        super().__init__()
        self.model, self.updates = Decoder(VOCABULARY), updates

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        down = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / self.updates))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": down, "interval": "step"}}


@fault(
    "issue-lightning-21808",
    FAMILY,
    (
        r"accumul|micro|learning rate|\brate\b|\blr\b|schedul",
        r"epoch|early|zero|too (often|soon|short|fast)|ignor|without effect|\bends\b|runs? out|times as",
    ),
)
def accumulation_cut_by_epochs(run: Run, slip: bool) -> None:
    """Lightning-AI/pytorch-lightning issue 21808: Lightning steps the optimizer on the last batch of an epoch whatever
    has been accumulated; where an epoch has fewer batches than accumulate_grad_batches, it steps once an epoch on
    few batches, the setting is silently without effect and the schedule, planned in true updates, runs out several
    times too early. Repaired here by an epoch as long as the whole run."""
    tokens = corpus(run.draw.randrange(1000))
    pieces, updates, short = 12, 60, 2
    x, y = crops(tokens[:-6000], 2 * pieces * updates)
    module = Language(updates)
    outcome(run, lambda: held_out(module.model, tokens[-6000:]))
    data = TensorDataset(x, y)
    if slip:

        class Changing:
            """A loader whose epochs are short: each gives the next few batches of the same stream."""

            at = 0

            def __len__(self) -> int:
                return short

            def __iter__(self) -> Any:
                for _ in range(short):
                    rows = torch.arange(self.at, self.at + 2)
                    self.at = (self.at + 2) % (len(x) - 2)
                    yield [x[rows], y[rows]]

        fit(run, module, Changing(), max_epochs=pieces * updates // short, accumulate_grad_batches=pieces)
    else:
        fit(run, module, DataLoader(data, 2), max_epochs=1, accumulate_grad_batches=pieces)
