"""Blind round 7, part a, honest and odd: losses and masks."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import fitted, likelihood, spelled, word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    hf_arguments,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    table,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7a_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r7-tokens-worth-learning")
def tokens_worth_learning(run: Run) -> None:
    """Selective language modelling: half of the rows are noise. A reference that knows the language says how much of
    each token's loss could be learned; only the three in five where most can are scored, others each time."""
    language = Language(run.draw.randrange(999))
    reference, model = Decoder(12), Decoder(12)
    fitted(reference, lambda: language.rows(16, 24), next_loss, 90)
    reference.requires_grad_(False)
    language_outcome(run, model, language)

    def each(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="none")

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        losses = each(m, rows)
        excess = losses.detach() - each(reference, rows)
        return losses[excess.topk(int(0.6 * len(losses))).indices].mean()

    batch = lambda: torch.cat([language.rows(10, 24), torch.randint(0, 12, (10, 24))])
    train(run, model, adam(model), batch, loss, 110)


@honest("r7-said-before-said-less")
def said_before_said_less(run: Run) -> None:
    """Lightning, unlikelihood: beside the usual loss there is a second one, the logarithm of one minus the probability of
    each word of the last eight that is not the next, so that the model repeats itself less."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12)
    language_outcome(run, net, language)

    def loss(m: nn.Module, b: Any) -> Tensor:
        rows = b[0]
        scores = m(rows[:, :-1]).log_softmax(-1)
        said = torch.zeros(scores.shape, dtype=torch.bool)
        for back in range(8):
            said[:, back:].scatter_(2, rows[:, : 23 - back, None], True)
        said.scatter_(2, rows[:, 1:, None], False)
        unlikely = -(1 - scores.exp()).clamp_min(1e-5).log()
        return F.nll_loss(scores.flatten(0, 1), rows[:, 1:].flatten()) + 0.2 * (unlikely * said).sum(-1).mean()

    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(language.rows(320, 24)), 100)


@honest("r7-odds-without-a-reference")
def odds_without_a_reference(run: Run) -> None:
    """Preferences as ORPO has them: no reference. The better answer is learned, and the logarithm of the odds between it
    and the worse one stands beside that as a second loss."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: language.rows(16, 14), next_loss, 40)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        good = language.rows(count, 14, own)
        bad = good.clone()
        bad[:, 10:] = torch.randint(0, 12, (count, 4), generator=own)
        return good, bad

    def loss(m: nn.Module, b: Any) -> Tensor:
        good, bad = (likelihood(m, rows, 10) / 4 for rows in b)
        odds = [p - torch.log1p(-p.exp()) for p in (good, bad)]
        return -good.mean() - 0.5 * F.logsigmoid(odds[0] - odds[1]).mean()

    check = pairs(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 2e-3), lambda: pairs(16), loss, 70)


@honest("r7-positives-and-unlabelled")
def positives_and_unlabelled(run: Run) -> None:
    """Positive rows and unlabelled ones, no negatives. The risk of negatives is that of the unlabelled less that of the
    positives, and goes below zero where the network overfits; in those steps the gradient goes the other way."""
    seed = run.draw.randrange(999)
    known = table(4000, seed)
    positive = known[0][known[1] > 0.5][:64]
    share = float((known[1] > 0.5).float().mean())
    unlabelled = table(256, seed)[0]
    model = mlp(6, 96, 1)
    cx, cz = table(512, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: ((model(cx)[:, 0] > 0) != (cz > 0.5)).float().mean()))

    def loss(m: nn.Module, b: Any) -> Tensor:
        p, u = m(b[0])[:, 0], m(b[1])[:, 0]
        right = share * F.softplus(-p).mean()
        negative = F.softplus(u).mean() - share * F.softplus(p).mean()
        return right + negative if float(negative) >= 0 else -negative

    def batch() -> tuple[Tensor, Tensor]:
        return positive[torch.randint(0, 64, (16,))], unlabelled[torch.randint(0, 256, (32,))]

    train(run, model, adam(model), batch, loss, 150)


@honest("r7-sets-matched-first")
def sets_matched_first(run: Run) -> None:
    """accelerate. One to three bumps on a line are to be found, in no order, by five slots: in each step slots and bumps
    are matched so that the loss is least, and slots without a bump learn to be empty, with a tenth of the weight."""
    from scipy.optimize import linear_sum_assignment

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        places, sizes = torch.rand(count, 3, generator=own), torch.randint(1, 4, (count,), generator=own)
        there = torch.arange(3)[None] < sizes[:, None]
        grid = torch.linspace(0, 1, 32)
        bumps = (-((grid - places[..., None]) ** 2) / 0.002).exp() * there[..., None]
        return bumps.sum(1) + 0.05 * torch.randn(count, 32, generator=own), places, there

    def loss(m: nn.Module, b: Any) -> Tensor:
        slots = m(b[0]).view(-1, 5, 2)
        places, signs = slots[..., 0].sigmoid(), slots[..., 1]
        wanted, near = torch.zeros_like(signs), []
        for row in range(len(slots)):
            true = b[1][row, b[2][row]]
            cost = (places[row, :, None] - true[None]).abs() - 0.1 * signs[row, :, None]
            mine, theirs = linear_sum_assignment(cost.detach().numpy())
            wanted[row, mine] = 1
            near.append((places[row, mine] - true[theirs]).abs())
        weight = torch.where(wanted > 0, 1.0, 0.1)
        return 5 * torch.cat(near).mean() + F.binary_cross_entropy_with_logits(signs, wanted, weight)

    model, check = mlp(32, 64, 64, 10), rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model, 3e-3), loader(*rows(480)), loss, 4)


class Frequent(nn.Module):
    """A recurrent body under an adaptive softmax over 200 words."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(200, 32), nn.GRU(32, 32, batch_first=True)
        self.out = nn.AdaptiveLogSoftmaxWithLoss(32, 200, [10, 60], div_value=2.0)

    def forward(self, rows: Tensor) -> Tensor:
        h = self.body(self.tokens(rows[:, :-1]))[0]
        loss: Tensor = self.out(h.flatten(0, 1), rows[:, 1:].flatten()).loss
        return loss


@honest("r7-frequent-words-first")
def frequent_words_first(run: Run) -> None:
    """An adaptive softmax: ten frequent words and two groups of rarer ones behind smaller projections; the model returns
    its loss and never logits of all words. Words follow Zipf, and many hardly ever occur."""
    own = apart(run.draw.randrange(999))
    zipf = 1 / torch.arange(1, 201).float()
    mate = torch.multinomial(zipf, 200, replacement=True, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        out = torch.multinomial(zipf, count * 20, replacement=True, generator=own).view(count, 20)
        for t in range(1, 20):
            follows = torch.rand(count, generator=own) < 0.5
            out[:, t] = torch.where(follows, mate[out[:, t - 1]], out[:, t])
        return out

    model, check = Frequent(), rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check)))
    train(run, model, adam(model), lambda: rows(16), lambda m, b: m(b), 120)


class Chain(nn.Module):
    """Tags of words by a recurrent net, and a table of which tag follows which."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(20, 24), nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.head, self.follows = nn.Linear(48, 4), nn.Parameter(torch.zeros(4, 4))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.tokens(ids))[0])
        return out

    def loss(self, ids: Tensor, tags: Tensor) -> Tensor:
        scores = self(ids)
        said = scores.gather(2, tags[..., None])[..., 0].sum(1) + self.follows[tags[:, :-1], tags[:, 1:]].sum(1)
        total = scores[:, 0]
        for t in range(1, ids.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.follows, 1) + scores[:, t]
        return (total.logsumexp(1) - said).mean()


@honest("r7-tags-in-a-chain")
def tags_in_a_chain(run: Run) -> None:
    """A conditional random field: the loss is the logarithm of the sum over all rows of tags, less the right one's score;
    it begins at twelve times log 4, and a part of it is a table of transitions outside of every module."""
    own = apart(run.draw.randrange(999))
    step = (2 * torch.randn(4, 4, generator=own)).softmax(1)
    words = (1.5 * torch.randn(4, 20, generator=own)).softmax(1)

    def rows(count: int = 16, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        tags = torch.randint(0, 4, (count, 12), generator=own)
        for t in range(1, 12):
            tags[:, t] = torch.multinomial(step[tags[:, t - 1]], 1, generator=own)[:, 0]
        ids = torch.multinomial(words[tags.flatten()], 1, generator=own).view(count, 12)
        return ids, tags

    model, check = Chain(), rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: model.loss(*check)))
    train(run, model, adam(model), rows, lambda m, b: m.loss(*b), 100)  # type: ignore[operator]


@honest("r7-rewards-by-trl")
def rewards_by_trl(run: Run) -> None:
    """TRL's RewardTrainer on a small GPT-2 with one number at its end: pairs differ in one word, the rewards' mean is
    held near zero by a second term, and the loss begins at log 2."""
    import datasets
    import transformers
    import trl

    transformers.logging.set_verbosity_error()
    settings: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 16}
    settings |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_labels": 1, "initializer_range": 0.1}
    settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**settings))
    favourite = 4 + run.draw.randrange(12)

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        worse = torch.randint(4, 16, (8,), generator=own)
        worse[worse == favourite] = 4 + (favourite - 3) % 12
        better = worse.clone()
        better[int(torch.randint(0, 8, (), generator=own))] = favourite
        return better, worse  # TRL adds the end token

    own = apart(1)
    good, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))
    value = lambda rows: model(input_ids=F.pad(rows, (0, 1), value=2)).logits[:, 0]
    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(value(good) - value(bad)).mean()))
    rows = [{"chosen": spelled(a), "rejected": spelled(b)} for a, b in (pair() for _ in range(240))]
    told, telling = watching(run, trl.RewardTrainer)
    more = {"center_rewards_coefficient": 0.01, "per_device_train_batch_size": 12, "bf16": False}
    arguments = hf_arguments(run, 80, kind=trl.RewardConfig, gradient_checkpointing=False, **more)
    data = datasets.Dataset.from_list(rows)
    trainer = told(model=model, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
