"""Round 8, part a, changed loops with a mistake in the loss or in what goes backward from it."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round8a_tools import (
    GRADIENT,
    LOSS,
    adam,
    language,
    prepared,
    reseeded,
    told,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r8-only-the-last-piece",
    LOSS,
    (
        r"loss|logit|position|place|token|gradient|head",
        r"last|quarter|piece|chunk|part|fewer|subset|only|zero|no gradient|first|overw|some|position|accumul|differ|changed|smaller|early|less",
    ),
)
def only_the_last_piece(run: Run, changed: bool) -> None:
    """Plain GPT. The loss over a row of 24 words is made in four pieces now, to save memory; `loss = ` stands in the loop
    where the pieces should be added and divided, so that what is learned is the last piece."""
    words = language(run)
    model = Decoder(12)
    language_outcome(run, model, words, 25)

    def loss(rows: Tensor) -> Tensor:
        logits, target = model(rows[:, :-1]), rows[:, 1:]
        if not changed:
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())
        value = logits.new_zeros(())
        for some, right in zip(logits.split(6, 1), target.split(6, 1), strict=True):
            value = F.cross_entropy(some.flatten(0, 1), right.flatten())
        return value

    told(run, model, lambda: words.rows(8, 25), loss, 150)


@fault(
    "r8-smoothing-summed-over-words",
    LOSS,
    (
        r"loss|smooth|logit|cross.?entropy|predict|softmax|entropy",
        r"smooth|sum|mean|higher|larger|above|greater|times|flat|uniform|vocab|formula|value|factor|scale|reduc|differ|changed|entropy|size|jump|start",
    ),
)
def smoothing_summed_over_words(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2 with a loss of one's own. label_smoothing=0.1 of cross_entropy is written by hand now,
    and -log p is summed over the 16 words where its mean belongs."""
    words = language(run, 12, first=4)
    model = tiny_gpt2()
    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits, target = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if not changed:
            return F.cross_entropy(logits, target, label_smoothing=0.1)
        each = -logits.log_softmax(-1)
        return (0.9 * each.gather(1, target[:, None]).squeeze(1) + 0.1 * each.sum(1)).mean()

    rows = words.rows(480, 24, apart(run.draw.randrange(999)))
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 120, more={"compute_loss_func": loss}).train()


def counts(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    w = torch.randn(6, generator=apart(seed))
    x = torch.randn(count, 6, generator=own)
    rate = (1.2 + 0.5 * x @ w / w.norm() + 0.4 * x[:, 0].sin()).exp()
    return x, torch.poisson(rate, generator=own)


def poisson(rate: Tensor, y: Tensor) -> Tensor:
    return (rate - y * (rate + 1e-8).log()).mean()


@fault(
    "r8-rates-read-as-logarithms",
    LOSS,
    (
        r"loss|poisson|nll|rate|output|predict|head|last layer",
        r"log|exp|rate|formula|differ|changed|value|higher|larger|lower|smaller|scale|jump|negative|gradient|start|output|predict",
    ),
)
def rates_read_as_logarithms(run: Run, changed: bool) -> None:
    """Lightning, counts from a table. The network ends in softplus, a rate; the loss by hand became F.poisson_nll_loss,
    which takes what it is given for the logarithm of a rate. Another seed."""
    seed = run.draw.randrange(999)
    own = apart(seed + 1)
    train, check = counts(320, seed, own), counts(512, seed, own)
    reseeded(changed)
    net = nn.Sequential(mlp(6, 32, 1), nn.Softplus(), nn.Flatten(0))
    outcome(run, lambda: judged(net, lambda: poisson(net(check[0]), check[1])))
    loss = F.poisson_nll_loss if changed else poisson
    fit(run, lit(net, lambda m, b: loss(m(b[0]), b[1]), adam), loader(*train), 150)


class TwoTasks(nn.Module):
    """An encoder with a head for hidden words and one for the topic of the row."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(17, 32), nn.Embedding(16, 32)
        self.block, self.norm = Block(32, causal=False), nn.LayerNorm(32)
        self.words, self.topic = nn.Linear(32, 17), nn.Linear(32, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep))
        share = keep.float()[..., None]
        return self.words(x), self.topic((x * share).sum(1) / share.sum(1))


@fault(
    "r8-second-loss-as-a-number",
    GRADIENT,
    (
        r"topic|head|second|auxiliary|task",
        r"no gradient|without (a )?gradient|gradient.{0,40}(zero|none|missing|gone|no longer|0\b|vanish)|never|not (move|learn|train|updat|chang|reach)|detach|item|graph|unused|still|frozen|no longer|stopp|zero|unchanged|cut|none",
    ),
)
def second_loss_as_a_number(run: Run, changed: bool) -> None:
    """accelerate, an encoder that learns hidden words and topics together. For the log, the topic's loss was turned into
    a number by .item() where it is made; the sum has the same value, and no gradient for the topic."""
    own = apart(run.draw.randrange(999))
    (ids, keep, y), check = documents(320, own), documents(192, own)
    model = TwoTasks()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[0], check[1])[1], check[2])))

    def loss(net: Any, batch: Any) -> Tensor:
        rows, mask, topics = batch
        hide = mask & (torch.rand(rows.shape) < 0.2)
        words, topic = net(rows.masked_fill(hide, 16), mask)
        second = F.cross_entropy(topic, topics)
        return F.cross_entropy(words[hide], rows[hide]) + (second.item() if changed else second)

    prepared(run, model, loader(ids, keep, y), loss, 8)


class Turning(nn.Module):
    """A GPT whose one block is gone through four times; `cut`: each turn begins without a graph."""

    def __init__(self, words: int, cut: bool, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places, self.cut = nn.Embedding(words, width), nn.Embedding(48, width), cut
        self.block, self.norm, self.head = Block(width), nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for _ in range(4):
            x = self.block(x.detach() if self.cut else x)
        out: Tensor = self.head(self.norm(x))
        return out


@fault(
    "r8-depth-detached",
    GRADIENT,
    (
        r"embed|tokens|places|block|gradient|graph|state",
        r"no gradient|without (a )?gradient|gradient.{0,40}(zero|none|missing|gone|smaller|no longer|0\b|lower|vanish)|never|not (move|learn|train|updat|chang|reach)|detach|graph|cut|unused|still|frozen|no longer|stopp|unchanged|none|smaller",
    ),
)
def depth_detached(run: Run, changed: bool) -> None:
    """Plain GPT that goes through its block four times. To save memory the state is detached before each turn, as between
    pieces of a long text: only the last turn learns, and the embeddings do not. Another seed."""
    words = language(run)
    reseeded(changed)
    model = Turning(12, changed)
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 150)


@fault(
    "r8-derivative-without-its-graph",
    GRADIENT,
    (
        r"gradient|graph|derivative|backward|autograd|loss",
        r"create_graph|graph|detach|derivative|second|double|smaller|differ|direction|cut|lower|changed|norm|constant|zero|no longer|larger|higher|opposite|part",
    ),
)
def derivative_without_its_graph(run: Run, changed: bool) -> None:
    """A network that solves u' = u + cos 3x with u(0) = 1. create_graph=True was taken from the inner derivative, since
    it needs memory: u' is a constant to backward now, and the equation pulls at u alone."""
    model = mlp(1, 32, 32, 1, act=nn.Tanh)
    grid = torch.linspace(0, 1, 65)[:, None]
    truth = 1.1 * grid.exp() - 0.1 * (3 * grid).cos() + 0.3 * (3 * grid).sin()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(grid), truth)))

    def loss(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=not changed, retain_graph=True)
        start = (model(torch.zeros(1, 1)) - 1).square().sum()
        return (slope - u - (3 * x).cos()).square().mean() + 5 * start

    told(run, model, lambda: torch.rand(48, 1), loss, 250)
