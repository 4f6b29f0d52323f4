"""Round 22b, mistakes in how a model is wired: scales, places, masks, shapes that broadcast, what is kept."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import LlamaBlock
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round22b_parts import (
    Cloud,
    Coupled,
    Events,
    Glance,
    Lookup,
    Machine,
    Packed,
    Traffic,
    Winds,
    bent,
    captions,
    clouds,
    crosses,
    letters,
    logs,
    records,
    slip,
    together,
    town,
    winds,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22b-minus-one-and-then-halved")
def minus_one_and_then_halved(run: Run, wrong: bool) -> None:
    """accelerate, attention that reads one of twelve records. The scale is written `size ** -1 / 2`, which is half of
    one over the size and not one over its root: scores are eight times too small, attention is nearly even. The twin
    has the root. Judged on other questions."""
    size = 16
    net = Lookup(size**-1 / 2 if wrong else size**-0.5)
    *inputs, answer = records(512, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(*inputs), answer)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        *inputs, answer = batch
        return F.cross_entropy(m(*inputs), answer)

    prepared(run, net, adam(net, 3e-3), loader(*records(2400), size=64), loss, 2)


@slip("r22b-places-by-the-row")
def places_by_the_row(run: Run, wrong: bool) -> None:
    """Lightning, torch's encoder over events of a log. The table of places is cut by the first size of what comes in,
    as where time stands first, but rows stand first here: all events of a row get one place, that of the row in its
    batch. The twin cuts it by the second. Judged on other logs."""
    net = Events(by_rows=wrong)
    class_outcome(run, net, logs(512, apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 2e-3)), loader(*logs(4800), size=32), 150)


@slip("r22b-nought-behind-nought")
def nought_behind_nought(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small Llama that writes captions and reads pictures by cross-attention. The projection
    of what was read begins at nought, and so does a gate behind it: each has the other as a factor of its gradient, and
    neither ever moves. The twin has the projection without the gate. Judged on other captions."""
    seed = run.draw.randrange(999)

    class Captioner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.glance = nn.Embedding(12, 32), Glance(32, 6, gated=wrong)
            self.blocks = nn.ModuleList(LlamaBlock(32, 2) for _ in range(2))
            self.norm, self.head = nn.RMSNorm(32), nn.Linear(32, 12, bias=False)

        def forward(self, seen: Tensor, labels: Tensor) -> dict[str, Tensor]:
            h = self.blocks[0](self.words(labels[:, :-1]))
            logits = self.head(self.norm(self.blocks[1](self.glance(h, seen))))
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}

    net = Captioner()
    seen, labels = captions(256, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(seen, labels)["loss"]))
    seen_in_training, said = captions(960, seed)
    hf_trainer(run, net, examples(seen=seen_in_training, labels=said), 120).train()


@slip("r22b-down-and-across-added")
def down_and_across_added(run: Run, wrong: bool) -> None:
    """Lightning, attention among stations of a grid with a learned number for each offset. An offset's two parts are
    added without the first being multiplied by the span, and all offsets of one sum share a number: the station to the
    north is the one to the west. The twin multiplies. Judged on other days."""
    seed = run.draw.randrange(999)
    net = Winds(added=wrong)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    number_outcome(run, net, winds(256, seed, apart(1)))
    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), loader(*winds(2400, seed)), 120)


@slip("r22b-masks-in-turn-for-heads")
def masks_in_turn_for_heads(run: Run, wrong: bool) -> None:
    """accelerate, a layer of torch's attention over three texts packed in a row. The masks that close one text to the
    others are repeated for the heads one after the other, where torch counts heads first and rows second: most heads
    have the mask of another row. The twin repeats each row's mask for its heads. Judged on other rows."""
    net = Packed(in_turn=wrong)
    check = letters(256, apart(1))
    outcome(run, lambda: judged(net, lambda: together(net, check)))
    prepared(run, net, adam(net, 3e-3), loader(*letters(800)), together, 3)


@slip("r22b-roads-of-the-first-morning")
def roads_of_the_first_morning(run: Run, wrong: bool) -> None:
    """Plain loop, two graph convolutions over a town whose open roads are others each morning. Each convolution keeps
    the shares that it made of the first graph's edges, as is meant for one graph that stays: all mornings are computed
    with the first one's roads. The twin makes them anew. Judged on other mornings."""
    seed = run.draw.randrange(999)
    net = Traffic(keep=wrong)
    check, mornings = town(64, seed, apart(1)), town(240, seed)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, edges, y = batch
        return F.mse_loss(m(x, edges), y)

    def unexplained() -> float:
        as_it_is = copy.deepcopy(net)
        return judged(
            as_it_is, lambda: torch.stack([loss(as_it_is, morning) / morning[2].var() for morning in check]).mean()
        )

    outcome(run, unexplained)
    train(run, net, adam(net), lambda: mornings[int(torch.randint(0, 240, ()))], loss, 150)


@slip("r22b-the-same-half-each-time")
def the_same_half_each_time(run: Run, wrong: bool) -> None:
    """Lightning, a flow of affine couplings. Which half of the columns a coupling leaves as it is should alternate; all
    six leave the same half, which is never transformed. The twin alternates. Judged by the density of other rows."""
    net = Coupled(alternate=not wrong)
    check = bent(1024, apart(1))
    outcome(run, lambda: judged(net, lambda: -net(check).mean()))
    data = loader(bent(4000), size=64)
    fit(run, lit(net, lambda m, batch: -m(batch[0]).mean(), lambda m: adam(m, 3e-3)), data, 150)


@slip("r22b-largest-of-all-clouds")
def largest_of_all_clouds(run: Run, wrong: bool) -> None:
    """accelerate, a PointNet that says which part of a rod a point belongs to. The largest of each channel is taken
    over the clouds of the batch and not over the points of a cloud, and spread out over all: no cloud knows where it
    lies. The twin takes it over points. Judged on other clouds, sixteen at a time."""
    net = Cloud(over=0 if wrong else 1)
    x, y = clouds(256, apart(1))

    def doubt() -> Tensor:
        return torch.stack([together(net, part) for part in zip(x.split(16), y.split(16), strict=True)]).mean()

    outcome(run, lambda: judged(net, doubt))
    prepared(run, net, adam(net), loader(*clouds(640)), together, 3)


@slip("r22b-each-field-with-itself")
def each_field_with_itself(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a factorisation machine of five fields. The square of the sum less the sum of the squares
    is taken along the vectors and summed over fields, in place of the other way about: each field is multiplied with
    itself, and no two fields meet. The twin sums over fields first. Judged on other rows."""
    seed = run.draw.randrange(999)
    machine = Machine(over=2 if wrong else 1)
    number_outcome(run, machine, crosses(1024, seed, apart(1)))
    x, y = crosses(4000, seed)
    options: dict[str, Any] = {"per_device_train_batch_size": 64, "learning_rate": 3e-2}
    hf_trainer(run, WithLoss(machine, F.mse_loss), examples(x=x, labels=y), 120, **options).train()
