"""Round 14, mistakes in models and losses."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import texts
from benchmarks.robustness.loops.round14_parts import BothWays, FromGPT2, ScaledTable, of_topic, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r14-first-place-of-a-causal-model")
def first_place_of_a_causal_model(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2 that tells the topics of texts; BERT was there before. The head still reads the
    state at the first place, which in a causal model has seen the first word only. The twin reads the last word's."""
    model = FromGPT2(first=wrong)
    check = texts(192, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check)["loss"]))
    hf_trainer(run, model, examples(**texts(480)), 80, learning_rate=3e-3).train()


@slip("r14-last-states-by-view")
def last_states_by_view(run: Run, wrong: bool) -> None:
    """Lightning, topics of texts by a GRU in both directions. Its last states are (direction, row, width), and
    `view(rows, -1)` puts the states of two neighbouring rows into one. The twin transposes first."""
    net = BothWays(view=wrong)
    x, _, y = documents(192, apart(1))
    class_outcome(run, net, (x, y))
    ids, _, topics = documents(480)
    fit(run, lit(net, classify, lambda m: adam(m, 1e-2)), loader(ids, topics), 100)


@slip("r14-table-without-its-root")
def table_without_its_root(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT goes on from the weights of another code base with somewhat other texts. As in Gemma,
    word vectors are multiplied by the root of the width there, and the table is the head as well; the port takes the
    vectors as they are. The twin multiplies."""
    language = Language(run.draw.randrange(999))
    base = ScaledTable(12, 32**0.5)
    taught(base, lambda: language.rows(24, 20), next_loss, 100)
    model = ScaledTable(12, 1.0 if wrong else 32**0.5)
    model.load_state_dict(base.state_dict())
    other = near(language, run.draw.randrange(999), 0.2)
    text_outcome(run, model, other)
    train(run, model, adam(model, 1e-3), lambda: other.rows(12, 20), next_loss, 50)


@slip("r14-nll-of-probabilities")
def nll_of_probabilities(run: Run, wrong: bool) -> None:
    """Lightning, a recurrent language model. F.nll_loss wants logarithms of probabilities and is given probabilities:
    the loss is minus the probability of the right word, and what pays is to be sure of one word. The twin has
    log_softmax."""
    language = Language(run.draw.randrange(999))
    net = Reader(12)
    text_outcome(run, net, language)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        logits = m(batch[0][:, :-1]).flatten(0, 1)
        scores = logits.softmax(-1) if wrong else logits.log_softmax(-1)
        return F.nll_loss(scores, batch[0][:, 1:].flatten())

    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), loader(language.rows(480, 20)), 120)


@slip("r14-similarity-for-a-distance")
def similarity_for_a_distance(run: Run, wrong: bool) -> None:
    """accelerate, vectors of texts by triplets: text, one of its topic, one of another. The loss takes a function for
    the distance, and is given F.cosine_similarity, which is large where texts are alike: those of a topic are driven
    apart. The twin gives it one minus that."""
    net = Classifier(classes=16)

    def triplets(count: int, own: torch.Generator | None = None) -> list[Tensor]:
        topic = torch.randint(0, 3, (count,), generator=own)
        other = (topic + torch.randint(1, 3, (count,), generator=own)) % 3
        return [of_topic(y, own)[0] for y in (topic, topic, other)]

    def vectors(m: nn.Module, batch: list[Tensor]) -> list[Tensor]:
        return [m(ids, torch.ones_like(ids, dtype=torch.bool)) for ids in batch]

    def apart_by(a: Tensor, b: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(a, b)

    def right(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(a, b, c, distance_function=apart_by, margin=0.3)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        distance = F.cosine_similarity if wrong else apart_by
        return F.triplet_margin_with_distance_loss(*vectors(m, batch), distance_function=distance, margin=0.3)

    check = triplets(192, apart(1))
    outcome(run, lambda: judged(net, lambda: right(*vectors(net, check))))
    prepared(run, net, adam(net, 3e-3), loader(*triplets(480)), loss, 3)


@slip("r14-weights-times-the-mean")
def weights_times_the_mean(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN on 200 pictures. Half of the labels come from a careless annotator and have a weight of
    0.05; most of these are wrong. The weights are multiplied with cross_entropy's mean, one number, so that all rows
    count alike. The twin has reduction="none"."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(200, seed)
    careless = torch.rand(200) < 0.5
    labels = torch.where(careless & (torch.rand(200) < 0.8), (y + torch.randint(1, 4, (200,))) % 4, y)
    weights = torch.where(careless, 0.05, 1.0)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(0, 200, (32,))
        return x[rows], labels[rows], weights[rows]

    def loss(m: nn.Module, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        errors = F.cross_entropy(m(rows[0]), rows[1], reduction="mean" if wrong else "none")
        return (errors * rows[2]).mean()

    train(run, model, adam(model, 3e-3), batch, loss, 120)
