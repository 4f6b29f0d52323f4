"""Round 18, mistakes in models and losses."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import recitals, titled
from benchmarks.robustness.loops.round18_parts import Kernel, OfWords, slip, tags, topics
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r18-layout-of-another-kernel")
def layout_of_another_kernel(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. Queries, keys and values lie as (row, place, head, part), as a fused kernel of another
    library wants them; scaled_dot_product_attention takes the last axis but one for places, and attends over the heads
    of one word. The twin transposes."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    for block in model.blocks:
        block.attention = Kernel(32, heads_first=not wrong)
    text_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(16, 24), next_loss, 200)


@slip("r18-groups-of-one-channel")
def groups_of_one_channel(run: Run, wrong: bool) -> None:
    """Lightning, convolutions with group norms. The norm over the pooled vector of 32 numbers has 32 groups, each of
    one number, which is its own mean: the bias alone comes out, the same for every picture. The twin has four
    groups."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(32, 32), nn.GroupNorm(32 if wrong else 4, 32), nn.ReLU(), nn.Linear(32, 4)),
    )
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), loader(*pictures(480, seed)), 120)


@slip("r18-places-clamped")
def places_clamped(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2 on recitals of 24 words, in which title and place decide each word. An index error
    of the days of a table of twelve places was mended by clamping position_ids at 11, and that stayed when the table
    became longer. The twin does not clamp."""
    seed = run.draw.randrange(999)
    model = tiny_gpt2(n_positions=24)

    def fields(count: int, own: torch.Generator) -> dict[str, Tensor]:
        ids = torch.tensor(recitals(seed, [24] * count, own))
        places = torch.arange(24).expand(count, -1)
        return {"input_ids": ids, "labels": ids, "position_ids": places.clamp(max=11) if wrong else places}

    check = fields(96, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    rows = examples(**fields(480, apart(run.draw.randrange(999))))
    hf_trainer(run, model, rows, 160, learning_rate=1e-2).train()


@slip("r18-weight-for-pos-weight")
def weight_for_pos_weight(run: Run, wrong: bool) -> None:
    """transformers' Trainer, three rare tags of texts with a loss of one's own. The six by which a tag that is there
    should count more is the third argument of binary_cross_entropy_with_logits, which is the weight of all. The twin
    names pos_weight."""
    net = OfWords()

    def right(logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor(6.0))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        if wrong:
            return F.binary_cross_entropy_with_logits(logits, labels, torch.tensor(6.0))
        return right(logits, labels)

    ids, y = tags(256, apart(1))
    outcome(run, lambda: judged(net, lambda: right(net(ids), y)))
    texts, labels = tags(480)
    hf_trainer(run, WithLoss(net, loss), examples(x=texts, labels=labels), 120, learning_rate=3e-3).train()


@slip("r18-balanced-twice")
def balanced_twice(run: Run, wrong: bool) -> None:
    """Lightning, topics of texts, of which one is frequent. A sampler draws them equally often, and the loss has the
    weights from before there was a sampler, one over the topics' shares. The twin has no weights."""
    from torch.utils.data import WeightedRandomSampler

    net = OfWords()
    class_outcome(run, net, topics(384, [1.0, 1.0, 1.0], 0.35, 8, apart(1)))
    ids, y = topics(480, [0.8, 0.14, 0.06], 0.35, 8)
    weights = len(y) / (3 * torch.bincount(y, minlength=3))

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1], weight=weights if wrong else None)

    sampler = WeightedRandomSampler(weights[y].tolist(), len(y))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(ids, y, shuffle=False, sampler=sampler), 90)


@slip("r18-mean-over-all-places")
def mean_over_all_places(run: Run, wrong: bool) -> None:
    """Plain loop with SGD, an encoder that fills in hidden words. Their errors are multiplied by the mask and the mean
    is taken, over all places, of which 15 in a hundred are hidden: loss and gradient are a seventh. The twin divides
    by the mask's sum."""
    seed = run.draw.randrange(999)
    model = Decoder(23)
    model.blocks = nn.ModuleList([Block(32, causal=False)])

    def hidden(count: int, own: torch.Generator | None = None) -> list[Tensor]:
        rows = titled(seed, count, 16, own)
        mask = torch.rand(rows.shape, generator=own) < 0.15
        return [rows.masked_fill(mask, 22), rows, mask.float()]

    def loss(m: nn.Module, batch: list[Tensor], everywhere: bool = wrong) -> Tensor:
        ids, rows, mask = batch
        errors = F.cross_entropy(m(ids).transpose(1, 2), rows, reduction="none") * mask
        return errors.mean() if everywhere else errors.sum() / mask.sum()

    check = hidden(192, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(run, model, optimizer, lambda: hidden(16), loss, 150)
