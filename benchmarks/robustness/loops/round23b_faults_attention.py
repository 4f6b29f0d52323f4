"""Round 23b, mistakes in what a model looks at and how it begins: masks, places, axes, first weights."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round23b_parts import (
    PixelByPixel,
    Sloped,
    Translating,
    Waves,
    Weighed,
    one_word_tells,
    relief,
    slip,
    turned_sentences,
    weave,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23b-softmax-without-a-dimension")
def softmax_without_a_dimension(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM whose outputs are weighed by attention before the head. The softmax of the scores is given no
    dimension, and takes the first where there are three: the rows of a batch compete for each place, and not a row's
    places. The twin names the places. Judged by the cross-entropy of other texts, sixteen at a time."""
    net = Weighed(16, 3, None if wrong else 1)
    x, y = one_word_tells(384, apart(1))

    def doubt() -> Tensor:
        found = torch.cat([net(rows) for rows in x.split(16)])
        return F.cross_entropy(found, y)

    outcome(run, lambda: judged(net, doubt))
    train(run, net, adam(net), lambda: one_word_tells(16), classify, 150)


@slip("r23b-far-words-nearer")
def far_words_nearer(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a decoder that knows of places by slopes over distance alone. The distance is the query's
    place less the key's and not the other way round: the further back a word is, the more is added to its score. The
    twin takes it off. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))

    def distances(size: int) -> Tensor:
        place = torch.arange(size)
        return place[:, None] - place if wrong else place - place[:, None]

    net = Sloped(12, distances)
    language_outcome(run, net, language)
    rows = language.rows(640, 24)
    model = WithLoss(net, lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    hf_trainer(run, model, examples(x=rows[:, :-1], labels=rows[:, 1:]), 120).train()


@slip("r23b-source-as-far-as-the-target")
def source_as_far_as_the_target(run: Run, wrong: bool) -> None:
    """Lightning, a convolutional encoder and a decoder that translate into a language whose sentences are the other way
    round. The mask that hides later words of the target is given to the attention to the source as well: at its first
    places the decoder sees no more than the source's first words, and what it needs stands at the end. The twin gives
    it none. Judged by the cross-entropy of other sentences."""
    seed = run.draw.randrange(999)

    def masks(size: int) -> tuple[Tensor, Tensor | None]:
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        return later, later if wrong else None

    net = Translating(13, 8, masks)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        return F.cross_entropy(m(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())

    check = turned_sentences(192, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    fit(run, lit(net, loss, adam), loader(*turned_sentences(960, seed)), 150)


@slip("r23b-blind-to-the-pixel-at-its-side")
def blind_to_the_pixel_at_its_side(run: Run, wrong: bool) -> None:
    """accelerate, a PixelCNN of pictures of noughts and ones. All three layers have the mask that hides the pixel
    itself, which only the first needs: each layer goes one pixel further back, and the pixels next to the one that is
    asked for are seen by no way. The twin has the other mask from the second layer on. Judged by the mean cross-entropy
    of a pixel in other pictures."""
    seed = run.draw.randrange(999)
    net = PixelByPixel("AAA" if wrong else "ABB")

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[0])

    check = weave(128, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, [check])))
    prepared(run, net, adam(net), loader(weave(320, seed)), loss, 6)


@slip("r23b-begun-thirty-times-as-steep")
def begun_thirty_times_as_steep(run: Run, wrong: bool) -> None:
    """Plain loop, a SIREN that learns a relief from a third of its pixels. Its inner weights are drawn by the rule for
    sines without being divided by the frequency of thirty: at first it is noise of ever higher frequency, and in 150
    steps it learns hardly anything. The twin divides. Judged on the other pixels."""
    at, height = relief(run.draw.randrange(999))
    net = Waves(lambda columns: math.sqrt(6 / columns) / (1 if wrong else 30))
    order = torch.randperm(len(at))
    given, others = order[:540], order[540:]
    number_outcome(run, net, (at[others], height[others]))

    def batch() -> tuple[Tensor, Tensor]:
        rows = given[torch.randint(0, len(given), (128,))]
        return at[rows], height[rows]

    train(run, net, adam(net, 5e-4), batch, regress, 150)
