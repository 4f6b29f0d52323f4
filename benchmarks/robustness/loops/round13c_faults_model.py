"""Round 13c, mistakes in the network."""

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
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round10a_tools import plain, titled
from benchmarks.robustness.loops.round11a_tools import adamw, recurring
from benchmarks.robustness.loops.round13c_parts import Convolved, OfAKind, RotaryModel, StateModel, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r13c-states-that-grow")
def states_that_grow(run: Run, wrong: bool) -> None:
    """Plain loop, a language model of diagonal states (S4D). The rates of decay are kept as logarithms, a =
    -exp(a_log); the port says exp(a_log), so that what a state holds grows with every word instead of fading. The twin
    has the minus."""
    language = Language(run.draw.randrange(999))
    model = StateModel(12, 1.0 if wrong else -1.0)
    language_outcome(run, model, language, 36)
    plain(run, model, lambda: language.rows(16, 36), lambda rows: next_loss(model, rows), 110)


@slip("r13c-convolution-sees-ahead")
def convolution_sees_ahead(run: Run, wrong: bool) -> None:
    """accelerate, a language model of dilated convolutions. Each layer is padded by half of its reach on both sides, as
    padding="same" does, where all of it belongs on the left: a place reads the words that come after it. Judged as in
    use, the next word of a beginning. The twin pads on the left."""
    language = Language(run.draw.randrange(999))
    net = Convolved(12, 0.5 if wrong else 0.0)
    check = language.rows(96, 20, apart(1))

    def in_use() -> Tensor:
        places = range(4, 20, 3)
        return torch.stack([F.cross_entropy(net(check[:, :t])[:, -1], check[:, t]) for t in places]).mean()

    outcome(run, lambda: judged(net, in_use))
    rows = language.rows(640, 20)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    prepared(run, net, optimizer, loader(rows), lambda model, batch: next_loss(model, batch[0]), 3)


@slip("r13c-kind-added-along-the-row")
def kind_added_along_the_row(run: Run, wrong: bool) -> None:
    """Lightning, a small GPT for texts of six kinds. The kind's vector should be added to every word of its row; (rows,
    width) was added to (rows, words, width) without a new axis, which fits as there are sixteen of both: the first word
    gets the first row's kind, the second the second's. Judged row by row, as in use. The twin has the axis."""
    seed = run.draw.randrange(999)
    net = OfAKind(22, 6, (lambda kinds: kinds) if wrong else (lambda kinds: kinds[:, None]))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        words, kind = batch
        return F.cross_entropy(net(words[:, :-1], kind).flatten(0, 1), words[:, 1:].flatten())

    def split(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[:, 1:], rows[:, 0] - 4

    words, kinds = split(titled(seed, 96, 18, apart(1)))
    outcome(
        run,
        lambda: judged(
            net, lambda: torch.stack([loss(net, (w[None], k[None])) for w, k in zip(words, kinds, strict=True)]).mean()
        ),
    )
    data = loader(*split(titled(seed, 640, 18)), drop_last=True)
    fit(run, lit(net, loss, adamw(5e-3)), data, 140)


@slip("r13c-keys-from-queries")
def keys_from_queries(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a Llama of one's own. The line that turns the keys by their places was copied from the
    one above and still names the queries: attention compares queries with queries, and the matrix of the keys is never
    used. A word mostly follows from the one six places before. The twin turns the keys."""
    seed = run.draw.randrange(999)
    model = RotaryModel(16, wrong)
    check = recurring(seed, 96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check, check)["loss"]))
    rows = recurring(seed, 640, 24)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 160).train()
