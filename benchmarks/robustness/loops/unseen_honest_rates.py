"""Honest runs with unusual rates, decays and schedules: rate 20, decay 1, restarts, warmup to the end, averages."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops, sentences
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import swa_utils


class TiedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.rnn = nn.LSTM(32, 32, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.rnn(self.embedding(ids))[0], self.embedding.weight, self.bias)


@honest("nh-sgd-at-rate-twenty")
def rate_twenty(run: Run) -> None:
    """Plain SGD without momentum at a rate of 20 with gradients clipped to 0.25, as word-level LSTMs were trained.

    A clipped gradient times 20 moves the weights by at most 5 over all of them; uniform small weights make gradients
    small at first. The rate is quartered when the loss on held-out text stops falling.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = TiedLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    held = crops(tokens[-4000:], 16, 24)

    def wrong(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(network(batch[0]).flatten(0, 1), batch[1].flatten())

    run.preflight(doctor, held, wrong)
    for step in range(120):
        batch = crops(tokens[:-4000], 12, 24)
        loss = wrong(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        if step % 20 == 19:
            with torch.no_grad():
                scheduler.step(wrong(model, held))


class SquaredSum(nn.Module):
    """Embeddings of two numbers added, mixed, squared, read off: enough for sums on a circle."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n, 48)
        nn.init.normal_(self.embedding.weight, std=48**-0.5)
        self.mix, self.read = nn.Linear(48, 128, bias=False), nn.Linear(128, n, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        out: Tensor = self.read(self.mix(self.embedding(pairs).sum(1)).square())
        return out


@honest("nh-decay-of-one-on-sums")
def decay_of_one(run: Run) -> None:
    """Addition modulo 23 with AdamW at a weight decay of 1: strong decay is what makes such a net find the rule.

    Six tenths of the sums are learned from, all of them in every step; the others are only looked at, and get right
    long after the learned ones are. Embeddings are decayed too.
    """
    n = 23
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n))[torch.randperm(n * n)]
    answers, cut = pairs.sum(1) % n, int(0.6 * n * n)
    model = SquaredSum(n)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0, betas=(0.9, 0.98))
    doctor = run.watch(model, optimizer)
    for step in range(300):
        loss = F.cross_entropy(model(pairs[:cut]), answers[:cut])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, pairs[:cut])
        run.note(loss)
        if step % 299 == 0:
            with torch.no_grad():
                quantity(run, accuracy(model(pairs[cut:]), answers[cut:]))


@honest("nh-restarts-with-snapshots")
def restarts(run: Run) -> None:
    """Cosine with warm restarts every 30 steps, twice as long each time, a snapshot kept before each restart.

    The rate jumps from nothing to its top and the loss with it; the snapshots predict together at the end.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 30, 2, eta_min=1e-4)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    held = shapes(160, classes=6, noise=0.5)
    together = torch.zeros(160, 6)
    for step in range(210):
        x, y = shapes(16, classes=6, noise=0.5)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        scheduler.step()
        run.note(loss)
        if step in (0, 29, 89, 209):
            model.eval()
            with torch.no_grad():
                together += model(held[0]).softmax(-1)
            model.train()
            quantity(run, accuracy(together, held[1]))


class AfterNorm(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(32, 4, 64, dropout=0.0, batch_first=True, norm_first=False)


class OldStyle(nn.Module):
    """The 2017 arrangement: norms after the sums, sines for places, embeddings times the root of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        nn.init.normal_(self.embedding.weight, std=32**-0.5)
        angles = torch.arange(24)[:, None] / 10_000 ** (torch.arange(16) / 16)
        self.register_buffer("sines", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)
        self.layers = nn.ModuleList(AfterNorm() for _ in range(3))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * 32**0.5 + self.sines  # type: ignore[operator]
        ahead = torch.ones(24, 24, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=ahead)
        out: Tensor = self.head(x)
        return out


@honest("nh-warmup-to-the-end")
def warmup_to_the_end(run: Run) -> None:
    """A transformer with norms after the sums whose rate only ever rises: the whole run is the warmup, from 1e-5.

    It is the first stage of a longer run whose checkpoint is kept; such nets want thousands of steps of warmup. The
    loss falls slowly at first because the rate is still tiny.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = OldStyle()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 400, 1.0, total_iters=130)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(100):
        x, y = crops(tokens, 10, 24)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-average-of-a-constant-rate")
def constant_average(run: Run) -> None:
    """Stochastic weight averaging: a high constant rate towards the end, an average of the weights every fifth step.

    The average's batch norm statistics are collected anew at the end by passes in training mode without gradients,
    and only the average is judged; the run's own weights bounce, which is what makes the average good.
    """
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(144, 64), nn.BatchNorm1d(64), nn.ReLU(), Counting(), nn.Linear(64, 32),
        nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    average = swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.2, anneal_epochs=10)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    pictures = [shapes(32, noise=0.2) for _ in range(24)]
    held = shapes(200, noise=0.2)
    average.eval()
    with torch.no_grad():
        quantity(run, accuracy(average(held[0]), held[1]))
    for step in range(168):
        x, y = pictures[step % 24]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 72:
            scheduler.step()
            if step % 5 == 0:
                average.update_parameters(model)
        doctor.step(loss, (x, y))
        run.note(loss)
    swa_utils.update_bn(pictures, average)
    average.eval()
    with torch.no_grad():
        quantity(run, accuracy(average(held[0]), held[1]))


@honest("nh-tiny-rate-for-a-sum")
def tiny_rate(run: Run) -> None:
    """Poisson regression whose loss is summed over 512 rows, at a constant SGD rate of a few millionths.

    A sum has 512 times the gradient of a mean, so the rate is that much smaller; rates and counts are large. Constant
    inputs are standardised, the bias starts at the mean count's logarithm.
    """
    truth = 0.4 * torch.randn(12)
    model: Any = nn.Linear(12, 1)
    nn.init.zeros_(model.weight)
    nn.init.constant_(model.bias, 3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-6)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        x = torch.randn(512, 12)
        counts = torch.poisson((x @ truth + 3.0).exp())
        loss = F.poisson_nll_loss(model(x).squeeze(1), counts, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, counts))
        run.note(loss)
        quantity(run, -(model.weight.detach()[0] - truth).norm())


class ByHooks(nn.Module):
    """Counts words of sentences of unequal length into a class of length and a next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.rnn = nn.GRU(32, 40, batch_first=True)
        self.head = nn.Linear(40, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embedding(ids))[0])
        return out


@honest("nh-update-inside-backward")
def inside_backward(run: Run) -> None:
    """Every weight has an optimizer of its own which a hook calls as soon as its gradient is there, then drops it.

    That saves the memory of all gradients at once; when backward returns, the update is done and no gradient is left.
    There is no `optimizer.step()` in the loop.
    """
    documents = sentences(run.draw.randrange(1000))
    model = ByHooks()
    own = {p: torch.optim.Adam([p], lr=6e-3) for p in model.parameters()}

    def update(weight: Tensor) -> None:
        own[weight].step()  # type: ignore[index]
        own[weight].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    doctor = run.watch(model)
    for _ in range(90):
        ids = nn.utils.rnn.pad_sequence([documents[run.draw.randrange(len(documents))] for _ in range(8)], True)
        x, y = ids[:, :-1], ids[:, 1:]
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=0)
        loss.backward()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-uneven-pieces-by-token")
def uneven_pieces(run: Run) -> None:
    """Accumulation over two to five micro-batches, as many as fit, divided by the number of tokens in all of them.

    Each piece's loss is a sum over its tokens, so pieces of different size have the weight they should.
    """
    documents = sentences(run.draw.randrange(1000))
    model = ByHooks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.05)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        pieces = []
        for _ in range(run.draw.randint(2, 5)):
            rows = [documents[run.draw.randrange(len(documents))] for _ in range(run.draw.randint(1, 5))]
            ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
            pieces.append((ids[:, :-1], ids[:, 1:]))
        tokens = sum(int((y != 0).sum()) for _, y in pieces)
        total = 0.0
        for x, y in pieces:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=0, reduction="sum") / tokens
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(total, pieces)
        optimizer.zero_grad()
        run.note(total)
