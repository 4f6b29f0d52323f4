"""What the doctor says that a loop does, on loops whose doings are known."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder
from doctor.small_loops import classes, net
from limpid.doctor.description import Description

Batch = dict[str, Tensor]
IGNORED = -100


class Loop:
    """Next tokens of drawn rows; each attribute is one line of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = Decoder()
        self.batches = 1
        self.steps = 3

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)

    def batch(self) -> Batch:
        ids = torch.randint(4, VOCAB, (4, 17))
        return {"ids": ids[:, :-1], "labels": ids[:, 1:].clone()}

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)

    def after_backward(self) -> None: ...

    def run(self) -> Description:
        optimizer = self.optimizer()
        with limpid.watch(self.model, optimizer, say=False) as doctor:
            assert doctor.description is None
            for _ in range(self.steps):
                given = [self.batch() for _ in range(self.batches)]
                optimizer.zero_grad()
                total = sum(self.loss(one) / self.batches for one in given)
                total.backward()
                self.after_backward()
                optimizer.step()
                doctor.step(total, given)
        assert dict(doctor.skipped) == {}
        assert doctor.description is not None
        return doctor.description


@functools.cache
def described(change: Callable[[Loop], Any]) -> Description:
    loop = Loop()
    change(loop)
    return loop.run()


def said(change: Callable[[Loop], Any], part: str) -> str:
    return "\n".join(described(change).of(part))


def masked(loop: Loop) -> None:
    """The first half of each row is not learned."""

    def batch() -> Batch:
        given = Loop.batch(loop)
        given["labels"][:, :8] = IGNORED
        return given

    loop.batch = batch


def not_shifted(loop: Loop) -> None:
    loop.batch = lambda: (lambda ids: {"ids": ids, "labels": ids.clone()})(torch.randint(4, VOCAB, (4, 16)))


def summed(loop: Loop) -> None:
    mean = loop.loss
    loop.loss = lambda batch: mean(batch) * batch["labels"].numel()


def accumulated(loop: Loop) -> None:
    loop.batches = 2


def clipped(loop: Loop) -> None:
    loop.after_backward = lambda: nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3)


def frozen(loop: Loop) -> None:
    for name, parameter in loop.model.named_parameters():
        parameter.requires_grad_("head" in name or parameter.ndim < 2)


def rests(loop: Loop) -> None:
    loop.model.eval()


def longer(loop: Loop) -> None:
    loop.steps = 20


def with_reference(loop: Loop) -> None:
    loop.reference = copy.deepcopy(loop.model).requires_grad_(False)  # held as long as the loop


def two_groups(loop: Loop) -> None:
    def optimizer() -> torch.optim.Optimizer:
        matrices = [p for p in loop.model.parameters() if p.ndim >= 2]
        vectors = [p for p in loop.model.parameters() if p.ndim < 2]
        return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 1e-4}], lr=1e-3)

    loop.optimizer = optimizer


def nothing(loop: Loop) -> None: ...


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        (nothing, "data", "1 forward pass with gradients make an update"),
        (nothing, "data", "rows so far: 12, none came twice"),
        (accumulated, "data", "2 forward passes with gradients make an update"),
        (nothing, "model", "all of them require a gradient"),
        (nothing, "model", "moves the outputs at 8 to 15 of 16, of no other row"),
        (nothing, "model", "spread as drawn ones are"),
        (frozen, "model", "% train"),
        (rests, "model", "evaluation mode in backward"),
        (with_reference, "model", "another model of its class is held, in training mode, without gradients"),
        (nothing, "labels", "100% of the positions are taught a token"),
        (nothing, "labels", "is taught the next token of its row"),
        (not_shifted, "labels", "is taught its own token"),
        (masked, "labels", "50% of the positions are taught a token"),
        (masked, "labels", "begin at position 8 and end at 15, 8 of 16 positions"),
        (nothing, "loss", "a mean over 64 labels; labels weigh alike"),
        (accumulated, "loss", "a mean over 128 labels"),
        (summed, "loss", "64 times their mean"),
        (nothing, "gradient", "order of a step: zero_grad, forward, backward, update"),
        (nothing, "gradient", "not clipped"),
        (clipped, "gradient", "clipped to 0.001"),
        (clipped, "run", "the limit of clipping reached in 3"),
        (nothing, "update", "AdamW: lr 0.001, betas 0.9/0.999"),
        (two_groups, "update", "rate 0.0001, weight_decay 0: "),
        (nothing, "run", "never run without gradients"),
        (longer, "run", "; means of its fifths: "),
    ],
)
def test_a_sentence_says_what_the_loop_does(change: Callable[[Loop], Any], part: str, words: str) -> None:
    assert words in said(change, part)


def test_a_row_is_shown_with_what_it_learns() -> None:
    loop = Loop()
    masked(loop)
    lines = loop.run().of("labels")
    reads, learns = (next(line for line in lines if line.startswith(start)) for start in ("row 0 reads", "and learns"))
    given, learned = reads.split()[3:], learns.split()[2:]
    assert learned[:8] == ["·"] * 8
    assert learned[8:13] == given[9:14]


def test_classes_of_rows() -> None:
    model = net(3, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = classes()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert doctor.description is not None
    assert "3 classes; 32 of 32 outputs have a label (32 rows)" in doctor.description.of("labels")


def test_layers_are_told_without_defaults() -> None:
    from limpid.doctor.description.weights import _settings

    layers = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8, eps=1e-12), nn.Dropout(0.0), nn.GELU(), nn.Linear(8, 8))
    assert _settings(layers) == ["LayerNorm((8,))", "LayerNorm((8,), eps=1e-12)", "Dropout(p=0.0)", "GELU", "Linear"]


def test_whoever_judges_it_is_given_what_is_meant_with_it() -> None:
    page = Loop().run()
    asked = page.question("  It learns the next token.\n")
    assert asked.startswith(
        "A training loop is meant to do this:\n\nIt learns the next token.\n\nMeasured, what this loop"
    )
    assert str(page) in asked
    assert asked.split()[-5:] == ["If", "nothing", "does,", "say", "so."]


def test_printed_it_fits_a_terminal() -> None:
    printed = str(Loop().run())
    assert printed.startswith("what this loop does, as measured on step 3 and the run up to step 3\n  data ")
    assert max(map(len, printed.splitlines())) <= 100
    for part in ("model", "labels", "loss", "gradient", "update", "run"):
        assert f"\n  {part} " in printed


def test_tokens_that_a_mask_hides_and_what_they_move() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=64, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(4, VOCAB, (4, 16))
            ids[0, 6:] = 0  # the middle of the row is padding
            batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}  # its cache, kept between two calls of a block, would have made lengths differ
    assert doctor.description is not None
    assert "where the mask is 0 the tokens are 0; never where it is not" in doctor.description.of("data")
    told = doctor.description.of("model")
    assert "other tokens where the mask is 0 move none of the outputs where it is not" in told
    assert "another token at position 3 of row 0 moves the outputs at 3 to 15 of 16, of no other row" in told


def test_a_sparse_input_is_told_as_such() -> None:
    model = net(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    edges = torch.eye(8).to_sparse()

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
            return self.net(torch.sparse.mm(neighbours, x))

    graph = Graph()
    with limpid.watch(graph, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = F.cross_entropy(graph(torch.randn(8, 4), edges), torch.randint(0, 3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    assert doctor.description is not None
    assert "neighbours: 8 × 8, float32, sparse" in doctor.description.of("data")
