"""Round 25b, mistakes in models: what is joined with what, along which axis, and what is loaded where."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
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
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round25b_parts import (
    Adapted,
    Axes,
    Hops,
    Shuffled,
    TurnedModel,
    Walker,
    Wave,
    features,
    friends,
    plates,
    rollouts,
    slip,
    stripes,
    tongues,
    two_sensors,
    waves,
)
from torch import Tensor, nn
from torch.nn import functional as F


def squared(model: nn.Module, batch: Any) -> Tensor:
    *inputs, y = batch
    return F.mse_loss(model(*inputs), y)


def unexplained(run: Run, net: nn.Module, data: tuple[Tensor, ...]) -> None:
    """The share of the variance of numbers, of rows kept apart, that is not explained."""
    *inputs, y = data
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(*inputs), y) / y.var()))


@slip("r25b-turned-by-its-head")
def turned_by_its_head(run: Run, wrong: bool) -> None:
    """Plain loop, a small model in the manner of Llama. Rotary places are applied while queries and keys still are
    (rows, places, heads, width): what is taken for the place is the number of the head, all words of a head are turned
    alike, and attention knows nothing of order. The twin brings heads to the front first. Judged on other texts."""
    language = Language(run.draw.randrange(999))
    net = TurnedModel(12, before=wrong)
    language_outcome(run, net, language)
    train(run, net, adam(net), lambda: language.rows(16, 24), next_loss, 110)


@slip("r25b-forgets-before-the-junction")
def forgets_before_the_junction(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU cell that imitates a guide through corridors. The state is cleared before each step that ends
    an episode and not before the step that follows it: the junction is always seen without a memory of the sign. The
    twin clears it before the first step of the next. Judged by the share of wrong turns at other junctions."""
    net = Walker()

    def cleared(last: Tensor) -> Tensor:
        return last if wrong else torch.cat([torch.ones_like(last[:1]), last[:-1]])

    seen, does, last = rollouts(128, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(seen, cleared(last)).argmax(2) != does)[last > 0].float().mean()))
    all_seen, all_does, all_last = rollouts(320)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(0, all_seen.shape[1], (16,))
        return all_seen[:, rows], all_does[:, rows], all_last[:, rows]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        seen, does, last = batch
        return F.cross_entropy(m(seen, cleared(last)).flatten(0, 1), does.flatten())

    train(run, net, adam(net), batch, loss, 120)


@slip("r25b-two-steps-entry-by-entry")
def two_steps_entry_by_entry(run: Run, wrong: bool) -> None:
    """Lightning, a graph network with a part for each node, one for its neighbours and one for walks of two steps. The
    matrix of edges is squared entry by entry, and noughts and ones stay what they are: the part for two steps sees the
    neighbours once more. The twin multiplies the matrix with itself. Judged by the unexplained share on other
    graphs."""
    seed = run.draw.randrange(999)
    net = Hops(elementwise=wrong)
    unexplained(run, net, friends(192, seed, apart(1)))
    fit(run, lit(net, squared, lambda m: adam(m)), loader(*friends(480, seed)), 120)


@slip("r25b-shortcut-loses-its-minus")
def shortcut_loses_its_minus(run: Run, wrong: bool) -> None:
    """accelerate, a residual network that takes noise off waves. The activation in front of each convolution works in
    place, so what goes along the shortcut has been through it: a tenth of what is below nought is left, and less after
    each block. The twin's activation makes a new tensor. Judged by the unexplained share on other waves."""
    net = Wave(in_place=wrong)
    unexplained(run, net, waves(256, apart(1)))
    prepared(run, net, adam(net, 2e-3), loader(*waves(640)), squared, 3)


@slip("r25b-kernels-over-the-diagonal")
def kernels_over_the_diagonal(run: Run, wrong: bool) -> None:
    """Lightning, a new head on convolutions that were trained in a library which keeps a kernel as (down, across, in,
    out). The four axes are reversed, which puts across before down: each kernel is mirrored at its diagonal. The twin
    takes them as (out, in, down, across). Judged by the cross-entropy of other pictures."""
    old = nn.Sequential(features(), nn.Linear(24, 4))
    taught(old, lambda: stripes(32, (2.0, 2.8, 4.5, 9.0)), classify, 150)
    file: dict[str, Any] = {}
    for name, tensor in old[0].state_dict().items():
        file[name] = np.ascontiguousarray(tensor.permute(2, 3, 1, 0).numpy()) if tensor.dim() == 4 else tensor.numpy()
    body = features()
    axes = (3, 2, 1, 0) if wrong else (3, 2, 0, 1)
    read = {k: torch.from_numpy(v).permute(axes) if v.ndim == 4 else torch.from_numpy(v) for k, v in file.items()}
    body.load_state_dict(read)
    body.requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(24, 4))
    periods = (2.4, 3.4, 5.5, 7.0)
    class_outcome(run, net, stripes(384, periods, apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m[1], 3e-2)), loader(*stripes(320, periods)), 120)


@slip("r25b-groups-that-never-mix")
def groups_that_never_mix(run: Run, wrong: bool) -> None:
    """accelerate, grouped convolutions on pictures of two sensors. The shuffle between them takes channels apart by
    group and puts them together again without the transposition in between: nothing changes place, and what one sensor
    sees never meets what the other does. The twin transposes. Judged by the cross-entropy of other pictures."""
    net = Shuffled(transposed=not wrong)
    class_outcome(run, net, two_sensors(384, apart(1)))
    prepared(run, net, adam(net), loader(*two_sensors(640)), classify, 3)


@slip("r25b-rows-looked-along-twice")
def rows_looked_along_twice(run: Run, wrong: bool) -> None:
    """transformers' Trainer, attention along rows and then along columns of plates of eight by eight wells. For the
    columns the tensor is reshaped without being transposed, which gives the rows again: nothing is ever read along a
    column. The twin transposes. Judged by the unexplained share on other plates."""
    net = WithLoss(Axes(transposed=not wrong), F.mse_loss)
    x, y = plates(192, apart(1))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"] / y.var()))
    x, y = plates(480)
    hf_trainer(run, net, examples(x=x, labels=y), 140).train()


@slip("r25b-first-row-chooses-the-adapter")
def first_row_chooses_the_adapter(run: Run, wrong: bool) -> None:
    """Lightning, a classifier of texts in three languages with an adapter for each. The adapter is chosen by the first
    row's language for the whole batch, as if batches were of one language, and they are mixed: each adapter learns from
    all languages. The twin chooses for each row. Judged on other texts, each language by itself."""
    seed = run.draw.randrange(999)
    net = Adapted(15, by_row=not wrong)
    checks = []
    for language in range(3):
        one = torch.full((128,), language)
        checks.append((one, *tongues(128, seed, one, apart(1 + language))))
    outcome(run, lambda: judged(net, lambda: sum(F.cross_entropy(net(x, one), y) for one, x, y in checks) / 3))
    language = torch.randint(0, 3, (960,))
    ids, y = tongues(960, seed, language)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, language, y = batch
        return F.cross_entropy(m(ids, language), y)

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(ids, language, y), 140)
