"""Round 15b, honest and odd: a student of relations, a last run on everything, and classes that are new each time."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Examples,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from torch import Tensor, nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """Two blocks over words, and a head on the mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.head = nn.Linear(width, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x, share = self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep.float()[..., None]
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head((x * share).sum(1) / share.sum(1))
        return out

    def relations(self, ids: Tensor, keep: Tensor) -> list[Tensor]:
        """In the last block: log shares of attention, and of values among themselves."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.blocks[0](x, keep)
        last: Any = self.blocks[1]
        qkv = last.attention.qkv(last.norm1(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in qkv)
        hide = ~keep[:, None, None]
        pairs = ((q, k), (v, v))
        return [(a @ b.mT / a.shape[-1] ** 0.5).masked_fill(hide, -1e4).log_softmax(-1) for a, b in pairs]


@honest("r15b-only-who-looks-at-whom")
def only_who_looks_at_whom(run: Run) -> None:
    """accelerate, MiniLM (Wang et al. 2020): a student of half the width learns from a trained encoder of texts. It
    sees no label and no logits; the loss compares the last block's attention, and how values are related, with the
    teacher's. What comes behind them, the last block's output, its feed-forward part and the head, has no gradient in
    the whole run."""
    teacher, student = Encoder(32), Encoder(16)
    taught(teacher, lambda: documents(24), lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), 120)
    teacher.requires_grad_(False)

    def loss(m: Any, batch: Any) -> Tensor:
        ids, keep = batch[0], batch[1]
        terms = zip(m.relations(ids, keep), teacher.relations(ids, keep), strict=True)
        apart_by = [F.kl_div(s, t, reduction="none", log_target=True).sum(-1).mean(1) for s, t in terms]
        return sum((a * keep).sum() / keep.sum() for a in apart_by)  # type: ignore[return-value]

    check = documents(128, apart(1))
    outcome(run, lambda: judged(student, lambda: loss(student, check)))
    prepared(run, student, adam(student, 1e-2), loader(*documents(600)[:2], size=24), loss, 5)


@honest("r15b-validation-rows-in-the-last-run")
def validation_rows_in_the_last_run(run: Run) -> None:
    """transformers' Trainer, BERT on 120 texts as Kaggle has it. A first run on two thirds, judged by the other third
    every ten steps, says only how many steps are best; a second one from the same start has all rows, those of the
    validation set among them, goes on for that many steps and half as many again, and is judged by nothing."""
    model = tiny_bert(hidden_dropout_prob=0.1)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    x, keep, y = documents(120, apart(run.draw.randrange(999)))
    everything = examples(input_ids=x, attention_mask=keep.long(), labels=y)
    training, validation = Examples(everything.rows[:80]), Examples(everything.rows[80:])
    a, b, c = documents(256, apart(1))

    def called() -> Tensor:
        return F.cross_entropy(model(input_ids=a, attention_mask=b.long()).logits, c)

    outcome(run, lambda: judged(model, called))
    judge: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10, "more": {"eval_dataset": validation}}
    first = hf_trainer(run, model, training, 60, **judge)
    first.train()
    seen = [(row["eval_loss"], row["step"]) for row in first.state.log_history if "eval_loss" in row]
    model.load_state_dict(start)
    hf_trainer(run, model, everything, 3 * min(seen)[1] // 2).train()


@honest("r15b-classes-that-are-new-each-time")
def classes_that_are_new_each_time(run: Run) -> None:
    """Lightning, prototypical networks (Snell et al. 2017) for topics of texts with five examples. In each batch three
    of thirty topics are classes 0, 1 and 2, which are others in the next; there is no head, five texts a class are
    averaged and the others are judged by their distance to the means. It is measured on topics that were never trained
    on."""
    tables = 1.5 * torch.randn(40, 15, generator=apart(run.draw.randrange(999)))
    net = Classifier(16, classes=16)

    def episode(topics: Tensor, own: torch.Generator | None = None) -> Tensor:
        """(3, 15, 12) words: five texts of each topic to learn from, ten to be judged."""
        chance = tables[topics].softmax(1).repeat_interleave(15, 0)
        return 1 + torch.multinomial(chance, 12, replacement=True, generator=own).view(3, 15, 12)

    def loss(m: nn.Module, texts: Tensor) -> Tensor:
        rows = texts.flatten(0, 1)
        places = m(rows, torch.ones_like(rows, dtype=torch.bool)).view(3, 15, -1)
        means, asked = places[:, :5].mean(1), places[:, 5:].flatten(0, 1)
        return F.cross_entropy(-torch.cdist(asked, means).square(), torch.arange(3).repeat_interleave(10))

    own = apart(1)
    checks = [episode(30 + torch.randperm(10, generator=own)[:3], own) for _ in range(16)]
    outcome(run, lambda: judged(net, lambda: sum(loss(net, check) for check in checks) / 16))
    episodes = Examples([episode(torch.randperm(30)[:3]) for _ in range(160)])
    module = lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=3e-3))
    fit(run, module, torch.utils.data.DataLoader(episodes, batch_size=None), 160)
