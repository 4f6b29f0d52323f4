"""Round 17a, honest and odd: labels and what they are of."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    apart,
    documents,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


def tagged_late(count: int, table: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 18) words 1 to 12; tags are of a word and the two after it, two places late."""
    words = torch.randint(1, 13, (count, 18), generator=own)
    tags = table[words[:, :-2] % 3, words[:, 1:-1] % 3, words[:, 2:] % 3]
    labels = torch.full_like(words, -100)
    labels[:, 2:] = tags
    return words, labels


@honest("r17a-said-two-words-late")
def said_two_words_late(run: Run) -> None:
    """Plain loop, an LSTM that tags words as they come, with delayed output (Graves and Schmidhuber 2005, and
    streaming speech since). The label at each place is of the word two places before, and the first two places have
    none: the tag depends on the two words that follow, and a reader that cannot look ahead can wait instead."""
    table = torch.randint(0, 4, (3, 3, 3), generator=apart(run.draw.randrange(999)))
    model = Reader(13, core=nn.LSTM)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    check = tagged_late(128, table, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), lambda: tagged_late(24, table), loss, 170, clip=1.0)


class Patient(nn.Module):
    """What is thought after each visit."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(16, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(ids))[0])
        return out


@honest("r17a-diagnosis-asked-from-the-first-visit")
def diagnosis_asked_from_the_first_visit(run: Run) -> None:
    """Lightning, a GRU over codes of visits with target replication (Lipton et al. 2016). The one label of a patient
    is asked after each visit, although nobody could know it after the first: half of the loss is a mean over all
    visits, which cannot come near zero, and it is there because a gradient from the end alone is slow to reach the
    beginning."""
    model = Patient()

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        ids, keep, y = batch
        each = F.cross_entropy(model(ids).transpose(1, 2), y[:, None].expand_as(ids), reduction="none")
        last = each[torch.arange(len(ids)), keep.sum(1) - 1].mean()
        return last, (each * keep).sum() / keep.sum()

    check = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: losses(model, check)[0]))
    body = lit(model, lambda m, batch: 0.5 * sum(losses(m, batch)), adamw(5e-3))  # type: ignore[arg-type,return-value]
    fit(run, body, loader(*documents(640), size=32), 200)


KEEP, DELETE, REPLACE, APPEND = 0, 1, 2, 10


def corrected(follows: Tensor, count: int, own: torch.Generator) -> list[dict[str, Tensor]]:
    """Rows of words 4 to 11, each of which says the next, with mistakes, and an edit for each: stay, go, become one of
    eight words, or be followed by one of eight."""
    out = []
    for start in torch.randint(0, 8, (count,), generator=own).tolist():
        word, words, edits = start, [3], [KEEP]
        for _ in range(12):
            word = int(follows[word])
            chance = float(torch.rand((), generator=own))
            wrong = int(torch.randint(4, 12, (), generator=own))
            if chance < 0.06 and edits[-1] == KEEP and len(words) > 1:  # lost
                edits[-1] = APPEND + word
                continue
            if chance > 0.94:  # one too many
                words.append(wrong)
                edits.append(DELETE)
            mistaken = chance < 0.15 and wrong != 4 + word
            words.append(wrong if mistaken else 4 + word)
            edits.append(REPLACE + word if mistaken else KEEP)
        out.append({"input_ids": torch.tensor(words), "labels": torch.tensor(edits)})
    return out


def padded_edits(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([row["input_ids"] for row in rows], batch_first=True)
    labels = pad([row["labels"] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@honest("r17a-edits-in-place-of-words")
def edits_in_place_of_words(run: Run) -> None:
    """Lightning, BERT that corrects texts by tagging (GECToR, Omelianchuk et al. 2020). A label is no word but an
    edit: leave it, drop it, put one of eight words in its place or behind it. Four labels in five say that nothing is
    to be done, which would be right most of the time if said always, and classes are not weighed, since most words are
    right."""
    from transformers import BertConfig, BertForTokenClassification

    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 18}
    size |= {"intermediate_size": 64, "vocab_size": 12, "max_position_embeddings": 32, "initializer_range": 0.1}
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForTokenClassification(BertConfig(**size, **no_dropout))
    follows = torch.randperm(8, generator=apart(run.draw.randrange(999)))
    check = padded_edits(corrected(follows, 128, apart(1)))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    rows = Examples(corrected(follows, 960, apart(run.draw.randrange(999))))
    data: Any = torch.utils.data.DataLoader(rows, 32, shuffle=True, collate_fn=padded_edits)
    fit(run, lit(model, lambda m, batch: m(**batch).loss, adamw(5e-3)), data, 200)


TIMES = torch.tensor([0.4, 1.0, 2.0])


def followed(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Five columns, the true chance to live past three times, when a row was last seen, and whether it had died
    then."""
    x = torch.randn(count, 5, generator=own)
    w = torch.randn(5, generator=apart(seed))
    hazard = (x @ (1.2 * w / w.norm())).exp()
    life = torch.empty(count).exponential_(generator=own) / hazard
    end = 3 * torch.rand(count, generator=own)
    return x, (-hazard[:, None] * TIMES).exp(), torch.minimum(life, end), life <= end


def kaplan_meier(seen: Tensor, died: Tensor, keep: Tensor) -> Tensor:
    """(rows of keep, times) the share that lives past each time, of the rows that are kept."""
    order = seen.argsort()
    seen, events, keep = seen[order], died[order].float(), keep[:, order]
    at_risk = keep.flip(1).cumsum(1).flip(1).clamp_min(1)
    steps = (1 - keep * events / at_risk).clamp_min(1e-9).log()
    return torch.stack([(steps * (seen <= t)).sum(1).exp() for t in TIMES], 1)


@honest("r17a-chances-below-zero-and-above-one")
def chances_below_zero_and_above_one(run: Run) -> None:
    """Lightning, survival from a table by pseudo-observations (Andersen et al. 2003, DNNSurv, Zhao and Feng 2020).
    Labels are chances to live past three times, and many of them are below zero or above one: each is what the whole
    study would say less what it would say without that patient, n and n - 1 times over, and right in the mean, also
    where a patient left."""
    seed = run.draw.randrange(999)
    model = mlp(5, 32, 32, 3)
    new, truth, *_ = followed(512, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new).sigmoid(), truth)))
    x, _, seen, died = followed(400, seed, apart(2))
    n = len(x)
    whole = kaplan_meier(seen, died, torch.ones(1, n))
    pseudo = n * whole - (n - 1) * kaplan_meier(seen, died, 1 - torch.eye(n))
    body = lit(model, lambda m, batch: F.mse_loss(m(batch[0]).sigmoid(), batch[1]), adamw(3e-3))
    fit(run, body, loader(x, pseudo, size=32), 200)


def shown(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 8, 5) things in the order in which they were shown, which were clicked, and how good they are."""
    w = torch.randn(5, generator=apart(seed))
    x = torch.randn(count, 8, 5, generator=own)
    good = 2 * x @ (w / w.norm())
    place = 1 / torch.arange(1, 9)
    order = (x[..., 0] + torch.randn(count, 8, generator=own)).argsort(1, descending=True)
    x, good = x.gather(1, order[..., None].expand_as(x)), good.gather(1, order)
    clicked = torch.rand(count, 8, generator=own) < place * (good - 1).sigmoid()
    return x, clicked.float(), good


@honest("r17a-a-click-far-down-counts-eightfold")
def a_click_far_down_counts_eightfold(run: Run) -> None:
    """Plain loop, things put in order from clicks (unbiased learning to rank, Joachims et al. 2017). What stands at
    the eighth place is looked at once in eight times, so that a click there weighs eight and one at the top weighs
    one; labels are wrong where nobody looked, two lists in five have no click and teach nothing, and weights are
    never made to sum to one."""
    seed = run.draw.randrange(999)
    model = mlp(5, 32, 1)
    x, _, good = shown(256, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x).squeeze(2), good.softmax(1))))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores = model(batch[0]).squeeze(2).log_softmax(1)
        return -(torch.arange(1, 9) * batch[1] * scores).sum(1).mean()

    train(run, model, adam(model, 3e-3), lambda: shown(48, seed), loss, 220)


class OneMoreAnswer(nn.Module):
    """A classifier with one more output than there are classes; it returns a gambler's loss."""

    def __init__(self, pays: float) -> None:
        super().__init__()
        self.pays, self.body = pays, tiny_bert(4, hidden_dropout_prob=0.0, initializer_range=0.1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(input_ids=input_ids, attention_mask=attention_mask).logits
        if labels is None:
            return {"logits": logits}
        chance = logits.softmax(1)
        staked = chance.gather(1, labels[:, None]).squeeze(1) + chance[:, 3] / self.pays
        return {"loss": -staked.log().mean(), "logits": logits}


@honest("r17a-an-answer-that-no-row-has")
def an_answer_that_no_row_has(run: Run) -> None:
    """transformers' Trainer, BERT with deep gamblers' loss (Liu et al. 2019), to know when not to answer. There are
    three topics and four outputs: the fourth is no row's label and never will be; it is a stake that is kept, worth 1
    / 2.6 of a right answer, and the network keeps more of it for the texts, two in five, that are about nothing."""
    model = OneMoreAnswer(2.6)
    check, seen, right = documents(256, apart(1))

    def measure() -> Tensor:
        return F.cross_entropy(model(check, seen.long())["logits"][:, :3], right)

    outcome(run, lambda: judged(model, measure))
    ids, keep, y = documents(960)
    empty = torch.rand(960, 1) < 0.4
    ids = torch.where(empty, torch.randint(1, 16, ids.shape) * keep, ids)
    rows = [{"input_ids": a, "attention_mask": b.long(), "labels": c} for a, b, c in zip(ids, keep, y, strict=True)]
    hf_trainer(run, model, Examples(rows), 220, per_device_train_batch_size=24, warmup_steps=10).train()
