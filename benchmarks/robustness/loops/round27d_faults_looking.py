"""Round 27d, mistakes of judging and sampling inside the loop: what is restored, replayed, chosen and shown."""

import copy
import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    class_outcome,
    documents,
    examples,
    hf_trainer,
    judged,
    loader,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round27d_parts import (
    Ahead,
    Tagger,
    Variational,
    annotated,
    factors,
    movements,
    slip,
    swings,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27d-best-while-it-was-cheap")
def best_while_it_was_cheap(run: Run, wrong: bool) -> None:
    """Plain loop, a variational autoencoder whose divergence gets its full weight over a hundred steps. Every ten steps
    it is validated, and the best weights are put back at the end. Validation weighs the divergence as training does at
    that moment: early weights look best because they pay little. The twin validates with the full weight. Judged by the
    bound with the full weight on other pictures."""
    seed = run.draw.randrange(999)
    net = Variational()
    optimizer = adam(net, 1e-2)

    def drawn(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return factors(count, seed, own), torch.randn(count, 8, generator=own)

    def price(x: Tensor, noise: Tensor, weight: float) -> Tensor:
        pixels, divergence = net(x, noise)
        out: Tensor = pixels + weight * divergence
        return out

    check, validation = drawn(384, apart(1)), drawn(128, apart(2))
    outcome(run, lambda: judged(net, lambda: price(*check, 1.0)))
    doctor = run.watch(net, optimizer)
    least, best = float("inf"), copy.deepcopy(net.state_dict())
    for step in range(1, 151):
        weight = min(step / 100, 1.0)
        batch = drawn(32)
        update(run, doctor, optimizer, price(*batch, weight), batch)
        if step % 10 == 0:
            found = judged(net, lambda: price(*validation, weight if wrong else 1.0))  # noqa: B023
            if found < least:
                least, best = found, copy.deepcopy(net.state_dict())
    net.load_state_dict(best)


@slip("r27d-memory-of-the-newest")
def memory_of_the_newest(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions over movements that meet two new kinds at a time. Half of each batch comes from a memory
    of sixty rows, a reservoir of all rows so far; but each new row takes a random place of the memory, however many
    have been seen: of the first kinds nothing is left. The twin keeps a row with a reservoir's chance. Judged on all
    six kinds."""
    seed = run.draw.randrange(999)
    layers = [nn.Conv1d(3, 16, 5), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(32, 6))
    class_outcome(run, net, movements(480, seed, [0, 1, 2, 3, 4, 5], apart(1)))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    memory: list[tuple[Tensor, Tensor]] = []
    seen = 0
    for kinds in ([0, 1], [2, 3], [4, 5]):
        for _ in range(45):
            x, y = movements(8, seed, kinds)
            old = [memory[i] for i in torch.randint(0, len(memory), (8,)).tolist()] if memory else []
            batch = (torch.stack([*x, *(row for row, _ in old)]), torch.stack([*y, *(kind for _, kind in old)]))
            update(run, doctor, optimizer, F.cross_entropy(net(batch[0]), batch[1]), batch)
            for row in zip(x, y, strict=True):
                seen += 1
                if len(memory) < 60:
                    memory.append(row)
                    continue
                place = int(torch.randint(0, 60 if wrong else seen, ()))
                if place < 60:
                    memory[place] = row


@slip("r27d-eight-votes-all-alike")
def eight_votes_all_alike(run: Run, wrong: bool) -> None:
    """Plain loop, a small transformer with dropout that asks for labels: every fifteen steps of the twenty-four texts
    about which eight passes with dropout differ most. The passes are made in evaluation mode and agree to the last
    digit, and the first texts of the file are taken, which lies by class. The twin leaves dropout on. Judged on other
    texts."""
    net = Classifier(drop=0.2)
    optimizer = adam(net, 3e-3)
    x, mask, y = documents(384, apart(1))
    class_outcome(run, net, (x, mask, y))
    x, mask, y = documents(480)
    order = y.argsort(stable=True)
    x, mask, y = x[order], mask[order], y[order]
    labelled = torch.zeros(480, dtype=torch.bool)
    labelled[torch.randperm(480)[:12]] = True

    def ask() -> None:
        net.train(not wrong)
        with torch.no_grad():
            votes = torch.stack([net(x, mask).softmax(1) for _ in range(8)])
        net.train()
        differ = votes.var(0).sum(1).masked_fill(labelled, -1)
        labelled[differ.argsort(descending=True, stable=True)[:24]] = True

    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step and step % 15 == 0:
            ask()
        known = labelled.nonzero().flatten()
        rows = known[torch.randint(0, len(known), (16,))]
        batch = (x[rows], mask[rows], y[rows])
        update(run, doctor, optimizer, F.cross_entropy(net(*batch[:2]), batch[2]), batch)


@slip("r27d-short-rows-look-easy")
def short_rows_look_easy(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a tagger of one transformer block. Three rows in ten have tags at random, and after thirty
    batches it learns from the three fifths of a batch's rows with the smallest losses. Losses of rows are sums over
    their words: the shortest rows are taken, right or not, and the long ones never. The twin takes means. Judged by the
    cross-entropy of each word on other rows without mistakes."""
    seed = run.draw.randrange(999)
    net = Tagger(by_sum=wrong)
    check = annotated(256, seed, 0.0, apart(1))
    outcome(run, lambda: judged(net, lambda: net(*check)["loss"]))
    words, mask, tags = annotated(960, seed, 0.3)
    data = examples(input_ids=words, attention_mask=mask, labels=tags)
    hf_trainer(run, net, data, 120).train()


@slip("r27d-alone-first-and-led-at-the-end")
def alone_first_and_led_at_the_end(run: Run, wrong: bool) -> None:
    """accelerate, two GRUs, one that reads a series and one that writes how it goes on, each value from the one before
    it. The share of true values among those shown should fall from one to nought over sixty steps; it rises from
    nought to one, and for the second half it is always led. The twin lets it fall. Judged by the squared error of what
    it writes alone."""
    net = Ahead()
    steps = itertools.count()
    past, future = swings(384, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(past), future)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        done = min(next(steps) / 60, 1.0)
        return F.mse_loss(m(batch[0], batch[1], done if wrong else 1 - done), batch[1])

    prepared(run, net, adam(net, 1e-2), loader(*swings(640), size=32), loss, 6)
