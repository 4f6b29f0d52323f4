"""Round 27b, mistakes in how a model is put together: what reads what, in which order, along which dimension."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import lagged
from benchmarks.robustness.loops.round27b_parts import (
    Crossed,
    Films,
    GroupedDecoder,
    Neighbourly,
    Panel,
    Switch,
    Waves,
    films,
    graphs,
    machines,
    orders,
    slip,
    swings,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27b-all-in-the-first-seat")
def all_in_the_first_seat(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT with experts in place of its feed-forward parts. Which seat a word gets at its expert is
    a running count of the words that chose it; it is counted along the experts and not along the words, and all words
    of an expert get its first seat, where they are summed. The twin counts along the words. Judged by the cross-entropy
    of other texts."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)
    for block in net.blocks:
        block.feed = Switch(32, along=1 if wrong else 0)
    language_outcome(run, net, language)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        value = next_loss(m, rows)
        return value + 0.01 * sum(part.balance for part in m.modules() if isinstance(part, Switch))

    train(run, net, adam(net, 3e-3), lambda: language.rows(12, 20), loss, 120)


@slip("r27b-keys-shared-in-turn")
def keys_shared_in_turn(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a language model with grouped attention that was trained before and is trained on for
    another kind of text. Its neighbouring heads of queries share a head of keys; where it is loaded, heads of keys are
    repeated in turn, and two of four heads of queries meet keys of the other group. The twin repeats each in its place.
    Judged by the cross-entropy of other texts of the new kind."""
    seed = run.draw.randrange(999)
    old = lagged(seed)
    new = near(old, seed + 1, 0.15)
    first = GroupedDecoder(12, in_turn=False)
    taught(first, lambda: old.rows(16, 20), next_loss, 160)
    net = GroupedDecoder(12, in_turn=wrong)
    net.load_state_dict(first.state_dict())
    language_outcome(run, net, new, 20)
    rows = new.rows(640, 21)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, WithLoss(net, loss), data, 60, learning_rate=2e-4).train()


@slip("r27b-as-many-heads-as-rows")
def as_many_heads_as_rows(run: Run, wrong: bool) -> None:
    """Lightning, a transformer over the nodes of graphs. What is added to the scores for how far apart two nodes are
    has no dimension for heads; batches are of four graphs and there are four heads, and each graph's numbers are added
    to one head of every graph. The twin gives them that dimension. Judged by what it says of other graphs' nodes, four
    graphs at a time."""
    net = Neighbourly(for_rows=not wrong)
    nodes, hops, y = graphs(96, apart(1))

    def share() -> Tensor:
        said = [net(a, b) for a, b in zip(nodes.split(4), hops.split(4), strict=True)]
        return F.mse_loss(torch.cat(said), y) / y.var()

    outcome(run, lambda: judged(net, share))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    fit(run, lit(net, loss, lambda m: adam(m, 4e-3)), loader(*graphs(600), size=4), 150)


@slip("r27b-each-floor-reads-the-street")
def each_floor_reads_the_street(run: Run, wrong: bool) -> None:
    """Lightning, a WaveNet that tells a series' next reading. A layer's output goes to the sum of answers, but each
    layer reads the first input and not what the layer before it made: places between the taps are never seen. The twin
    hands it on. Judged by the next readings of other series."""
    net = Waves(handed_on=not wrong)
    check = swings(128, own=apart(1))

    def missed(m: nn.Module, rows: Tensor) -> Tensor:
        return F.mse_loss(m(rows[:, :-1])[:, 16:], rows[:, 17:])

    outcome(run, lambda: judged(net, lambda: missed(net, check) / check.var()))
    data = loader(swings(640))
    fit(run, lit(net, lambda m, batch: missed(m, batch[0]), lambda m: adam(m, 5e-3)), data, 120)


@slip("r27b-frames-of-other-films")
def frames_of_other_films(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over the frames of films and a GRU over what they found. Frames are laid end
    to end film by film; afterwards they are read as if they lay moment by moment, and each row of the GRU gets frames
    of several films. The twin takes them back as they were laid. Judged by the cross-entropy of other films."""
    net = Films(in_order=not wrong)
    class_outcome(run, net, films(256, apart(1)))
    x, y = films(960)
    hf_trainer(run, WithLoss(net, F.cross_entropy), examples(x=x, labels=y), 120, learning_rate=8e-3).train()


@slip("r27b-every-column-begins-at-row-nought")
def every_column_begins_at_row_nought(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a factorization machine over five columns of categories in one table. Where a column's
    rows begin isn't added: the third category of each column has the same vector. The twin adds it. Judged by the
    unexplained share of other rows' numbers."""
    sizes = [6, 9, 4, 12, 7]
    seed = run.draw.randrange(999)
    net = Crossed(sizes, moved=not wrong)
    number_outcome(run, net, orders(512, sizes, seed, apart(1)))
    ids, y = orders(1200, sizes, seed)
    data = examples(x=ids, labels=y)
    hf_trainer(run, WithLoss(net, F.mse_loss), data, 150, learning_rate=3e-2, per_device_train_batch_size=32).train()


@slip("r27b-as-many-readings-as-sensors")
def as_many_readings_as_sensors(run: Run, wrong: bool) -> None:
    """accelerate, a GRU over twelve readings of twelve sensors in units of their own, behind a batch norm. The norm
    takes the second dimension for channels, which are the times and not the sensors: all sensors of a moment share a
    mean and a spread, and those with small units vanish. The twin turns readings for the norm. Judged by the
    cross-entropy of other machines."""
    seed = run.draw.randrange(999)
    net = Panel(turned=not wrong)
    class_outcome(run, net, machines(384, seed, apart(1)))
    prepared(run, net, adam(net, 5e-3), loader(*machines(640, seed)), classify, 3)
