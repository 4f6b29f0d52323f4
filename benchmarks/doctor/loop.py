"""The base loop: the training step that everybody writes, with every line a hook point that a fault may replace."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.doctor.data import IGNORED, PAD, held_out, rows
from benchmarks.doctor.models import build
from benchmarks.doctor.settings import Settings
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Inject = Callable[["Loop"], None]


class Watcher(Protocol):
    """Somebody who looks on: the doctor, or nobody."""

    def begin(self, loop: Loop) -> None: ...
    def step(self, loop: Loop, loss: Tensor, batches: list[Any]) -> None: ...


class Loop:
    """One run. An injection replaces methods of the instance; what it leaves alone is healthy."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler | None

    def __init__(self, architecture: str, seed: int, settings: Settings) -> None:
        self.architecture, self.seed, self.settings = architecture, seed, settings
        self.number = 0  # of the step under way
        self.micro = 0
        self.labels = settings.labels_per_step
        self.losses: list[float] = []
        self.notes: dict[str, Any] = {}  # what injections and proofs want to remember
        self.events: list[tuple[int, Callable[[], None]]] = []

    # what there is before the first step

    def prepare(self) -> None:
        self.model = self.build().to(self.settings.device)
        self.optimizer = self.make_optimizer()
        self.scheduler = self.make_scheduler()
        scale = self.settings.initial_scale
        self.scaler = (
            torch.amp.GradScaler(self.settings.device, scale, growth_interval=50) if self.settings.scaled else None
        )
        self.change()
        torch.manual_seed(1000 + self.seed)

    def build(self) -> nn.Module:
        model = build(self.architecture, self.settings, self.seed)
        if self.settings.pretrained_steps:
            self.load(model, pretrained(self.architecture, self.settings))
        return model

    @property
    def watched(self) -> nn.Module:
        """The module that a user would have watched."""
        return self.model

    def load(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        model.load_state_dict(state)

    def groups(self) -> list[dict[str, Any]]:
        """Decay on matrices, none on gains, biases and embeddings."""
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        decayed = [p for name, p in named if p.ndim >= 2 and not is_embedding(name)]
        others = [p for name, p in named if p.ndim < 2 or is_embedding(name)]
        return [{"params": decayed, "weight_decay": self.settings.decay}, {"params": others, "weight_decay": 0.0}]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.groups(), lr=self.settings.rate, betas=(0.9, 0.95), eps=self.settings.eps)

    def make_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share_of_peak)

    def share_of_peak(self, step: int) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        warmup, steps = self.settings.warmup, self.settings.steps
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    def change(self) -> None:
        """What some people do once model and optimizer exist: nothing, in a healthy run."""

    # the step

    def batch(self, step: int, micro: int) -> Any:
        """Inputs, and the next token of each as its target."""
        inputs, targets = self.shifted(self.tokens(step, micro), step, micro)
        return inputs.to(self.settings.device), targets.to(self.settings.device)

    def tokens(self, step: int, micro: int) -> Tensor:
        s = self.settings
        return rows(s.text, s.vocab, s.rows, s.positions, (self.seed, step, micro))

    def shifted(self, tokens: Tensor, step: int, micro: int) -> Batch:
        seed = (self.seed, step, micro)
        match self.settings.labels:
            case "few":
                inputs, targets = split(tokens)
                mask_prompts(targets, seed)
            case "uneven":  # no more than one label per row in the first micro-batch, all of them in the last
                inputs, targets = split(tokens)
                kept = max(1, targets.shape[1] * micro // (self.settings.micro_batches - 1))
                targets[:, : targets.shape[1] - kept] = IGNORED
            case "documents":
                inputs, targets = split(end_documents(tokens, seed))
                targets[inputs == PAD] = IGNORED  # the end itself is learned, what comes after is not
            case _:
                inputs, targets = split(tokens)
        return inputs, targets

    def forward(self, batch: Any) -> Tensor:
        out = self.model(batch[0])
        return getattr(out, "logits", out)

    def loss(self, logits: Tensor, batch: Any) -> Tensor:
        """Mean over all labels of the step, whichever micro-batch they are in."""
        total = F.cross_entropy(logits.flatten(0, 1).float(), batch[1].flatten(), reduction="sum", ignore_index=IGNORED)
        return total / self.labels

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def clip(self) -> None:
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)

    def update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def advance(self) -> None:
        self.scheduler.step()

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def micro_step(self, batch: Any) -> Tensor:
        loss = self.loss(self.forward(batch), batch)
        self.backward(loss)
        return loss.detach()

    def step(self) -> tuple[Tensor, list[Any]]:
        batches = [self.batch(self.number, j) for j in range(self.settings.micro_batches)]
        self.labels = max(1, sum(count_labels(batch) for batch in batches))
        loss = torch.zeros((), device=self.settings.device)
        for self.micro, batch in enumerate(batches):
            loss = loss + self.micro_step(batch)
        self.unscale()
        self.clip()
        self.update()
        self.advance()
        self.clear()
        return loss, batches

    # the run

    def at(self, step: int, event: Callable[[], None]) -> None:
        """Let `event` happen before step `step`."""
        self.events.append((step, event))

    def run(self, watcher: Watcher | None = None, steps: int | None = None) -> Loop:
        self.prepare()
        if watcher is not None:
            watcher.begin(self)
        for number in range(self.settings.steps if steps is None else steps):
            self.number = number
            for step, event in self.events:
                if step == number:
                    event()
            loss, batches = self.step()
            self.losses.append(float(loss))
            if watcher is not None:
                watcher.step(self, loss, batches)
        return self

    @torch.no_grad()
    def validation(self, count: int = 64) -> float:
        """Mean loss in nats of the true next tokens on rows never trained on; infinite when it is not a number."""
        s, training = self.settings, self.model.training
        self.model.eval()
        tokens = held_out(s.text, s.vocab, count, s.positions).to(s.device)
        logits = Loop.forward(self, (tokens[:, :-1],))
        loss = float(F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))
        self.model.train(training)
        return loss if math.isfinite(loss) else math.inf


def is_embedding(name: str) -> bool:
    return any(word in name for word in ("wte", "wpe", "embed"))


def count_labels(batch: Any) -> int:
    targets = batch["labels"] if isinstance(batch, dict) else batch[1]
    return int((targets != IGNORED).sum())


def split(tokens: Tensor) -> Batch:
    return tokens[:, :-1], tokens[:, 1:].clone()


def end_documents(tokens: Tensor, seed: tuple[int, ...]) -> Tensor:
    """Rows become documents of 8 tokens or more, each closed by one PAD and filled up with PAD."""
    lengths = np.random.default_rng((*seed, 1)).integers(8, tokens.shape[1], len(tokens))
    return tokens.clamp(min=PAD + 1).masked_fill(
        torch.arange(tokens.shape[1]) >= torch.from_numpy(lengths)[:, None], PAD
    )


def mask_prompts(targets: Tensor, seed: tuple[int, ...]) -> None:
    """Keep the last few labels of each row: one to an eighth of its length, as when only answers are trained on."""
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    kept = torch.randint(1, max(2, targets.shape[1] // 8), (len(targets),), generator=generator)
    targets[torch.arange(targets.shape[1]) < (targets.shape[1] - kept)[:, None]] = IGNORED


@functools.cache
def pretrained(architecture: str, settings: Settings) -> dict[str, Tensor]:
    """Weights of a healthy run, to go on from."""
    steps = settings.pretrained_steps
    fresh = replace(Settings(), pretrained_steps=0, steps=steps, tied=settings.tied, rate=3e-3)
    return Loop(architecture, 100, fresh).run().model.state_dict()


def after(loop: Loop, hook: str, change: Callable[[Any], Any]) -> None:
    """Let `change` have the last word on what the hook point returns (None keeps it)."""
    original = getattr(loop, hook)

    def changed(*given: Any) -> Any:
        made = original(*given)
        other = change(made)
        return made if other is None else other

    setattr(loop, hook, changed)
