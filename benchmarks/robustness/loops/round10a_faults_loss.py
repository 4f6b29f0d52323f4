"""Round 10, part a, loops with a mistake in the loss: its formula, its weights, its reduction."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import Denoiser, Logits, gpt2, noised, other_seed, vit
from benchmarks.robustness.loops.round10a_tools import adamw, keyed, plain
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader


@keyed("r10a-logits-viewed-as-classes-first")
def logits_viewed_as_classes_first(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2 with a loss of one's own. cross_entropy wants the classes on the second axis: a transpose put
    them there, and a view does now, which leaves the numbers where they are."""
    words = Language(run.draw.randrange(999), 16)
    model = Logits(gpt2(16))

    def loss(rows: Tensor, viewed: bool) -> Tensor:
        logits = model(rows[:, :-1])
        rows_, places, vocabulary = logits.shape
        scores = logits.view(rows_, vocabulary, places) if viewed else logits.transpose(1, 2)
        return F.cross_entropy(scores, rows[:, 1:])

    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(check, False)))
    plain(run, model, lambda: words.rows(16, 24), lambda x: loss(x, changed), 120)


@keyed("r10a-log-prior-subtracted")
def log_prior_subtracted(run: Run, changed: bool) -> None:
    """Lightning, an encoder of topics of uneven frequency. Logits are adjusted by the logarithm of the topics' shares,
    for the loss alone; the correction that belongs to prediction, with a minus, is made in training now. Another
    seed."""
    own = apart(run.draw.randrange(999))
    ids, mask, y = documents(2800, own, length=8)
    kept = (torch.rand(2800, generator=own) < torch.tensor([0.88, 0.14, 0.05])[y]).nonzero().flatten()[:800]
    train, check = (ids[kept], mask[kept], y[kept]), documents(240, own, length=8)
    other_seed(changed)
    model = Classifier()
    class_outcome(run, model, check)
    prior = (train[2].bincount(minlength=3) / len(kept)).log()
    sign = -1 if changed else 1
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1]) + sign * prior, b[2])
    fit(run, lit(model, loss, adamw(3e-3)), loader(*train), 150, gradient_clip_val=1.0)


def patients(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Six columns, a time that is short where the hazard is high, and whether the event was seen."""
    w = torch.randn(6, generator=apart(seed + 8))
    x = torch.randn(count, 6, generator=own)
    hazard = x @ (1.5 * w / w.norm()) + torch.sin(2 * x[:, 0])
    time, left = (-torch.rand(count, generator=own).clamp(min=1e-6).log() for _ in range(2))
    time, left = time * (-hazard).exp(), 2.5 * left
    return x, torch.minimum(time, left), time <= left


def partial_likelihood(log_hazard: Tensor, time: Tensor, seen: Tensor, descending: bool) -> Tensor:
    """The negative logarithm of Cox's partial likelihood, mean over events."""
    order = time.argsort(descending=descending)
    log_hazard, seen = log_hazard[order], seen[order]
    return (log_hazard.logcumsumexp(0) - log_hazard)[seen].mean()


@keyed("r10a-risk-set-from-the-other-end")
def risk_set_from_the_other_end(run: Run, changed: bool) -> None:
    """Plain loop, an MLP for survival times. Rows were sorted by falling time, so that the running sum holds all who
    are still there; the sort was rewritten and rises. Another seed."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    train, (x, time, seen) = patients(640, seed, own), patients(256, seed, own)
    other_seed(changed)
    model = mlp(6, 32, 32, 1)

    def discordant() -> Tensor:
        risk = model(x).squeeze(1)
        earlier = (time[:, None] < time) & seen[:, None]
        return (risk[:, None] < risk)[earlier].float().mean()

    outcome(run, lambda: judged(model, discordant))
    batches = endless(loader(*train, size=64))
    loss = lambda b: partial_likelihood(model(b[0]).squeeze(1), b[1], b[2], descending=not changed)
    plain(run, model, lambda: next(batches), loss, 120)


@keyed("r10a-divided-by-the-columns")
def divided_by_the_columns(run: Run, changed: bool) -> None:
    """Plain loop with SGD, a ViT. The summed loss is divided by len(batch). Batches were a list of rows; since the
    collator stacks them, a batch is a dict of two columns, and its length is 2."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    check = pictures(192, seed, own=apart(seed + 2))
    model = vit()
    outcome(run, lambda: judged(model, lambda: model(pixel_values=check[0] - 0.5, labels=check[1]).loss))

    def stacked(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        shots, labels = (torch.stack(part) for part in zip(*rows, strict=True))
        return {"pixel_values": shots - 0.5, "labels": labels}

    rows: Any = list(zip(x, y, strict=True))
    data = DataLoader(rows, 16, shuffle=True, collate_fn=stacked if changed else list, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    doctor = run.watch(model, optimizer)
    model.train()
    for _ in range(4):
        for batch in data:
            fields = batch if changed else stacked(batch)
            logits = model(pixel_values=fields["pixel_values"]).logits
            loss = F.cross_entropy(logits, fields["labels"], reduction="sum") / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, fields)
            run.note(loss)


@keyed("r10a-snr-weight-upside-down")
def snr_weight_upside_down(run: Run, changed: bool) -> None:
    """Lightning, a denoising diffusion model. The weight of each time, min(snr, 5) / snr, was taken over anew from a
    paper whose network predicts something else, and numerator and denominator changed places. Another seed."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    kept = (1 - torch.linspace(0.001, 0.15, 40)).cumprod(0)
    snr = kept / (1 - kept)
    x, held = (2 * pictures(n, seed, own=own)[0].flatten(1) - 1 for n in (640, 200))
    times, noise = torch.arange(200) % 40, torch.randn(200, 64, generator=own)
    other_seed(changed)
    model = Denoiser(40)

    def loss(net: Any, x: Tensor, t: Tensor, noise: Tensor, wrong: bool = False) -> Tensor:
        error = (net(noised(x, noise, t, kept), t) - noise).square().mean(1)
        weight = snr.clamp(max=5) / snr
        return ((1 / weight if wrong else weight)[t] * error).mean()

    def step(net: Any, batch: Any) -> Tensor:
        t, drawn = torch.randint(0, 40, (len(batch[0]),)), torch.randn_like(batch[0])
        return loss(net, batch[0], t, drawn, changed)

    outcome(run, lambda: judged(model, lambda: loss(model, held, times, noise)))
    fit(run, lit(model, step, adamw(3e-3)), loader(x, size=32), 200, gradient_clip_val=1.0)
