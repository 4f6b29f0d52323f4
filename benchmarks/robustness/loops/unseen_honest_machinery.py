"""Honest runs with machinery of their own: random depth, routing, resuming, optimizers by hand, a queue of keys."""

import copy
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint


class Looped(nn.Module):
    """One block used a drawn number of times, each time recomputed in backward; the draws are Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(24, 32)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.1)
        self.block = nn.TransformerEncoderLayer(32, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.counting, self.norm, self.head = Counting(), nn.LayerNorm(32), nn.Linear(32, VOCABULARY)
        self.depths: list[int] = []

    def draw(self) -> int:
        import random

        depth = random.choice((1, 2, 2, 3, 4)) if self.training else 2
        self.depths.append(depth)
        return depth

    def forward(self, ids: Tensor) -> Tensor:
        x = self.counting(self.embedding(ids) + self.places.weight)
        ahead = torch.ones(24, 24, dtype=torch.bool).triu(1)
        for _ in range(self.draw()):
            x = checkpoint.checkpoint(self.block, x, ahead, use_reentrant=False)
        out: Tensor = self.head(self.norm(x))
        return out


@honest("nh-one-block-drawn-depth")
def drawn_depth(run: Run) -> None:
    """One transformer block shared by all depths, applied one to four times as Python's `random` says, checkpointed.

    Two passes over a batch differ since the depth does, which makes the model good at any depth; the block runs again
    in backward. The drawn depths are kept in a list of the model's.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = Looped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)

    def wrong(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(network(batch[0]).flatten(0, 1), batch[1].flatten())

    run.preflight(doctor, crops(tokens, 8, 24), wrong)
    for _ in range(80):
        batch = crops(tokens, 8, 24)
        loss = wrong(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Routed(nn.Module):
    """Top-1 routing with a limit for each expert and a bias moved by load instead of a balancing loss."""

    load_bias: Tensor

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(32, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)) for _ in range(experts)
        )
        self.register_buffer("load_bias", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        scores = torch.sigmoid(self.router(flat))
        chosen = (scores + self.load_bias).argmax(-1)
        out, room = torch.zeros_like(flat), int(1.5 * len(flat) / len(self.experts))
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().squeeze(1)[:room]  # those beyond the limit pass by
            out = out.index_add(0, rows, scores[rows, index, None] * expert(flat[rows]))
        if self.training:
            load = torch.bincount(chosen, minlength=len(self.experts)) / len(flat)
            self.load_bias += 0.02 * (1 / len(self.experts) - load).sign()
        return x + out.view_as(x)


@honest("nh-routed-with-load-bias")
def routed(run: Run) -> None:
    """A GRU with a routed layer: one expert for each token, overflow passes by, a bias buffer evens the load out.

    The bias chooses but does not weigh, so it has no gradient and moves in forward by a fixed amount; an expert that
    few tokens choose may have no gradient in a step. There is no balancing loss, as in DeepSeek's recipe.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = nn.ModuleDict({
        "embedding": nn.Embedding(VOCABULARY, 32), "rnn": nn.GRU(32, 32, batch_first=True), "routed": Routed(),
        "head": nn.Linear(32, VOCABULARY),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x, y = crops(tokens, 8, 20)
        hidden = model["rnn"](model["embedding"](x))[0]
        loss = F.cross_entropy(model["head"](model["routed"](hidden)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


@honest("nh-killed-and-resumed")
def resumed(run: Run) -> None:
    """A run that is stopped half way and taken up from its file with everything: weights, optimizer, schedule, dice.

    The second half has a new model object, a new optimizer and a doctor of its own; its loss goes on from where the
    first stopped, so it starts low and the rate starts in the middle of its cosine.
    """
    pictures, names = shapes(320, classes=6, noise=0.3)
    order = torch.Generator().manual_seed(run.draw.randrange(10**6))

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.BatchNorm2d(24),
            nn.ReLU(), nn.Dropout2d(0.1), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(96, 6),
        )  # fmt: skip
        optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)

    with tempfile.TemporaryDirectory() as folder:
        for half in range(2):
            model, optimizer, scheduler = parts()
            if half:
                saved = torch.load(f"{folder}/run.pt", weights_only=True)
                for part, key in ((model, "model"), (optimizer, "optimizer"), (scheduler, "scheduler")):
                    part.load_state_dict(saved[key])
                order.set_state(saved["order"])
                torch.set_rng_state(saved["dice"])
            doctor = run.watch(model, optimizer, scheduler=scheduler)
            for _ in range(60):
                rows = torch.randint(0, 320, (24,), generator=order)
                loss = F.cross_entropy(model(pictures[rows]), names[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                doctor.step(loss, (pictures[rows], names[rows]))
                scheduler.step()
                run.note(loss)
            states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            saved = {key: part.state_dict() for key, part in states.items()}
            torch.save(saved | {"order": order.get_state(), "dice": torch.get_rng_state()}, f"{folder}/run.pt")


@honest("nh-lightning-by-hand")
def by_hand(run: Run) -> None:
    """Lightning with manual optimisation: an autoencoder and a probe on its frozen codes, two optimizers in one module.

    `automatic_optimization` is off; the probe updates every second step and must not change the code, so it gets it
    detached. The doctor watches the module with the autoencoder's optimizer; the probe's weights are none of that
    optimizer's.
    """
    import logging
    import warnings

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Both(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.ReLU(), nn.Linear(48, 12))
            self.decode = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 144))
            self.probe = nn.Linear(12, 6)
            self.doctor: Any = None

        def configure_optimizers(self) -> Any:
            codes = [*self.encode.parameters(), *self.decode.parameters()]
            return torch.optim.Adam(codes, lr=4e-3), torch.optim.SGD(self.probe.parameters(), lr=0.05)

        def training_step(self, batch: Any, index: int) -> None:
            x, y = batch
            for_code, for_probe = self.optimizers()
            if self.doctor is None:
                self.doctor = run.watch(nn.ModuleList([self.encode, self.decode]), for_code.optimizer)
            code = self.encode(x)
            loss = F.mse_loss(self.decode(code), x.flatten(1))
            for_code.zero_grad()
            self.manual_backward(loss)
            for_code.step()
            if index % 2:
                wrong = F.cross_entropy(self.probe(code.detach()), y)
                for_probe.zero_grad()
                self.manual_backward(wrong)
                for_probe.step()
                quantity(run, accuracy(self.probe(code.detach()), y))
            self.doctor.step(loss, x)
            run.note(loss)

    model = Both()
    x, y = shapes(480, classes=6, noise=0.15, still=True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=5, accelerator="cpu", devices=1, logger=False, default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, loader)


class Memory(nn.Module):
    """A classifier by the nearest of a queue of past keys, which a slow copy wrote (MoCo)."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.ask = nn.Sequential(nn.Conv2d(1, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Flatten(),
                                 nn.Linear(216, 24))  # fmt: skip
        self.key = copy.deepcopy(self.ask).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(128, 24), dim=1))
        self.at = 0

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        with torch.no_grad():
            if self.training:
                for slow, fast in zip(self.key.parameters(), self.ask.parameters(), strict=True):
                    slow.lerp_(fast, 0.05)
            keys = F.normalize(self.key(two), dim=1)
        asked = F.normalize(self.ask(one), dim=1)
        near = torch.cat([(asked * keys).sum(1, keepdim=True), asked @ self.queue.clone().T], 1) / 0.2
        if self.training:
            self.queue[self.at : self.at + len(keys)] = keys
            self.at = (self.at + len(keys)) % len(self.queue)
        return near


@honest("nh-queue-of-past-keys")
def past_keys(run: Run) -> None:
    """Momentum contrast: negatives come from a queue of earlier batches' keys, written by a slow copy inside forward.

    The answer is always class 0. Forward moves the copy, the queue and its place, a Python integer; the queue is
    random at first. Half of the weights have no gradient.
    """
    model = Memory()
    optimizer = torch.optim.SGD(model.ask.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    doctor = run.watch(model, optimizer)

    def view(x: Tensor) -> Tensor:
        return (x + 0.1 * torch.randn_like(x)) * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1))

    def wrong(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(network(*batch), torch.zeros(len(batch[0]), dtype=torch.long))

    x, _ = shapes(32, classes=6, noise=0.15)
    run.preflight(doctor, (view(x), view(x)), wrong)
    for _ in range(120):
        x, _ = shapes(32, classes=6, noise=0.15)
        batch = (view(x), view(x))
        loss = wrong(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
