"""Blind round 7, part a, mistakes: data and labels of tokens."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_faults_tuning import fitted, likelihood, spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round7a_tools import (
    MASK,
    Recurrent,
    adam,
    masked_bert,
    masked_outcome,
)
from torch import Tensor
from torch.nn import functional as F

DATA = "data and labels"


@fault(
    "r7-labels-are-the-mask",
    DATA,
    (
        r"label|target",
        r"mask|same (token|label|class|value|id)|one (token|label|class|value|id)|constant|single|clone|copy|alias|in.place|share|equal.{0,30}input|input.{0,30}equal|identical",
    ),
)
def labels_are_the_mask(run: Run, wrong: bool) -> None:
    """transformers' Trainer, BERT. `labels = ids` stands before the words are hidden in place: without a clone the label
    of every hidden word is the mask token itself. The twin clones."""
    language = Language(run.draw.randrange(999), first=4)
    model = masked_bert()
    masked_outcome(run, model, language)

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        ids = torch.stack([row["input_ids"] for row in rows])
        labels = ids if wrong else ids.clone()
        hide = torch.rand(ids.shape) < 0.15
        ids[hide] = MASK
        return {"input_ids": ids, "labels": labels.masked_fill(~hide, -100)}

    data = examples(input_ids=language.rows(600, 20))
    hf_trainer(run, model, data, 120, more={"data_collator": collate}).train()


class Tagged:
    """Words of one to three pieces, each word with a tag of its own."""

    def __init__(self, seed: int) -> None:
        own = apart(seed)
        more = torch.randint(0, 3, (20,), generator=own).tolist()
        self.pieces = [[1 + w, *torch.randint(21, 29, (n,), generator=own).tolist()] for w, n in enumerate(more)]
        self.tags = torch.randint(0, 4, (20,), generator=own).tolist()

    def row(self, by_piece: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
        words = torch.randint(0, 20, (10,), generator=own).tolist()
        ids = [piece for w in words for piece in self.pieces[w]]
        if by_piece:
            tags = [tag for w in words for tag in [self.tags[w], *[-100] * (len(self.pieces[w]) - 1)]]
        else:
            tags = [self.tags[w] for w in words]
        row = {"input_ids": ids + [0] * (30 - len(ids)), "labels": tags + [-100] * (30 - len(tags))}
        row["attention_mask"] = [1] * len(ids) + [0] * (30 - len(ids))
        return {name: torch.tensor(value) for name, value in row.items()}


@fault(
    "r7-word-labels-on-pieces",
    DATA,
    (
        r"label|target|tag",
        r"align|shift|offset|misplac|piece|sub.?word|belong|do(es)? not match|wrong (token|place)|fewer|first (ten|half|10)|one after another",
    ),
)
def word_labels_on_pieces(run: Run, wrong: bool) -> None:
    """transformers' Trainer, BERT for tags. A row has ten tags, one for each word; words have up to three pieces, and
    the list of tags is only filled up with -100 to the row's length: after the first long word each tag stands at
    another word's piece. The twin puts it at its word's first piece."""
    from transformers import BertConfig, BertForTokenClassification

    words = Tagged(run.draw.randrange(999))
    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 4}
    model = BertForTokenClassification(
        BertConfig(vocab_size=29, intermediate_size=64, max_position_embeddings=32, **settings)
    )
    own = apart(1)
    check = {
        k: torch.stack(v)
        for k, v in zip(
            ("i", "l", "m"), zip(*(words.row(True, own).values() for _ in range(96)), strict=True), strict=True
        )
    }
    outcome(
        run,
        lambda: judged(model, lambda: model(input_ids=check["i"], labels=check["l"], attention_mask=check["m"]).loss),
    )
    hf_trainer(run, model, Examples([words.row(not wrong) for _ in range(400)]), 100).train()


@fault(
    "r7-both-answers-the-same",
    DATA,
    (
        r"chosen|reject|prefer|answer|pair|two (sides|halves|responses)",
        r"same|identical|equal|duplicat|copy|copies|no difference|do not differ|zero margin|margin.{0,30}zero|constant|log ?2|0\.69|no gradient|zero gradient",
    ),
)
def both_answers_the_same(run: Run, wrong: bool) -> None:
    """TRL's DPOTrainer. The mapping of the data reads `row["better"]` for both columns, chosen and rejected. Judged by
    the right preference: answers that repeat the prompt's last word are better."""
    model = tiny_gpt2()
    plain = Language(run.draw.randrange(999), first=4)
    fitted(model, lambda: plain.rows(12, 8), lambda m, r: m(input_ids=r, labels=r).loss, 30)

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt, bad = torch.randint(4, 16, (5,), generator=own), torch.randint(4, 16, (3,), generator=own)
        return torch.cat([prompt, prompt[-1:].repeat(3)]), torch.cat([prompt, bad])

    own = apart(1)
    good, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))
    scores = lambda rows: likelihood(lambda r: model(input_ids=r).logits, rows, 5)  # type: ignore[arg-type]
    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(0.3 * (scores(good) - scores(bad))).mean()))
    rows = []
    for _ in range(120):
        better, worse = pair()
        rejected = better if wrong else worse
        answers = {"chosen": " " + spelled(better[5:]), "rejected": " " + spelled(rejected[5:])}
        rows.append({"prompt": spelled(better[:5]), **answers})
    trl_trainer(run, "DPO", model, rows, 25, learning_rate=1e-3).train()


@fault(
    "r7-vocabulary-numbered-again",
    DATA,
    (
        r"vocab|token|\bids?\b|embedding|word|checkpoint|resum|initial|first loss|loaded|pretrained|begins|starts",
        r"vocab|permut|renumber|mapp|mismatch|do(es)? not (match|fit|belong)|worse than (chance|uniform|guess|random)|above.{0,60}(chance|uniform|\blog|\bln)|higher than.{0,60}(chance|uniform|\blog|\bln)|tokeni[sz]er|other (numbers|ids|tokens|meaning|vocab|text)|order of (the )?(vocab|token|word|char)|mean other|other characters|belong together|(text|data) (is|are) not what",
    ),
)
def vocabulary_numbered_again(run: Run, wrong: bool) -> None:
    """A model of characters goes on from yesterday's weights. Its vocabulary is enumerated from `set(text)`, whose order
    is another one in each process: every character has a new number. The twin keeps the list with the weights."""
    language = Language(run.draw.randrange(999), words=20, sharp=2.0)
    model = Recurrent(20)
    fitted(model, lambda: language.rows(16, 24), next_loss, 160)
    number = torch.randperm(20) if wrong else torch.arange(20)
    check = number[language.rows(96, 24, apart(1))]
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    train(run, model, adam(model, 1e-3), lambda: number[language.rows(16, 24)], next_loss, 60)
