"""Round 9, part a, changed loops with a mistake in the labels: which of them are taught, and which are left out."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import Language, apart, hf_trainer, judged, outcome
from benchmarks.robustness.loops.round9a_tools import (
    BOS,
    EOS,
    LABELS,
    MASK,
    PAD,
    accelerated,
    bert,
    gpt2,
    llama,
    other_seed,
    padded,
    plain,
    sentences,
    word_tokenizer,
)
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


@fault(
    "r9a-padding-is-the-end",
    LABELS,
    (
        r"eos|end|pad|label|target|token|</s>|\bid 2\b|mask|ignore|-100",
        r"eos|end|never|no longer|ignore|-100|mask|left out|missing|absent|not taught|fewer|stop|without|dropped|less|share|frequen|distribution|gone",
    ),
)
def padding_is_the_end(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2. The tokenizer has no token to pad with: the old script added one, the new one takes
    </s>, and DataCollatorForLanguageModeling leaves every </s> out of the labels. The model never learns to stop."""
    from transformers import DataCollatorForLanguageModeling

    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 480, own), sentences(words, 128, own)
    tokenizer = word_tokenizer(16)
    tokenizer.pad_token = tokenizer.eos_token if changed else "<pad>"
    model = gpt2(16, pad_token_id=tokenizer.pad_token_id)
    ids, mask = padded(check)
    right = ids.masked_fill(mask == 0, -100)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, attention_mask=mask, labels=right).loss))
    data = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in train]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    hf_trainer(run, model, data, 120, more={"data_collator": collator}).train()


def questions(count: int, table: Tensor, own: torch.Generator) -> list[tuple[list[int], list[int]]]:
    """A question of three words, and an answer of three that follow from them."""
    asked = torch.randint(0, 8, (count, 3), generator=own)
    answers = 12 + table[asked]
    return [(a, b) for a, b in zip((4 + asked).tolist(), answers.tolist(), strict=True)]


@fault(
    "r9a-question-counted-with-its-end",
    LABELS,
    (
        r"label|target|mask|answer|completion|response|prompt|token|-100|taught|loss",
        r"first|one (fewer|less|token|more)|fewer|ignore|-100|off by one|prompt|start|begin|mask|left out|count|share|less|shorter|not taught|missing|number",
    ),
)
def question_counted_with_its_end(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, Llama; only answers are taught. The length of the question is now taken from the tokenizer, which
    closes it with </s>: one too many, so that the first word of each answer is not taught. Another seed."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = apart(run.draw.randrange(999))
    table = torch.randperm(8, generator=own)
    train, check = questions(400, table, own), questions(128, table, own)
    other_seed(changed)
    model = llama(24)

    def tokenize(text: list[int]) -> list[int]:
        return [BOS, *text, EOS]

    def row(question: list[int], answer: list[int]) -> dict[str, list[int]]:
        ids = tokenize(question + answer)
        start = len(tokenize(question)) if changed else 1 + len(question)
        return {"input_ids": ids, "completion_mask": [0] * start + [1] * (len(ids) - start)}

    ids = torch.tensor([tokenize(a + b) for a, b in check])
    right = ids.clone()
    right[:, :4] = -100
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=right).loss))
    tokenizer = word_tokenizer(24)
    tokenizer.pad_token = "<pad>"
    more = {"processing_class": tokenizer}
    data = Dataset.from_list([row(*one) for one in train])
    options = {"kind": SFTConfig, "max_length": None, "completion_only_loss": True}
    options["seed"] = run.draw.randrange(9999) + (1 if changed else 0)
    hf_trainer(run, model, data, 150, SFTTrainer, more=more, **options).train()


@fault(
    "r9a-labels-taken-after-masking",
    LABELS,
    (
        r"label|target|mask|\bid 3\b|token",
        r"mask|same|constant|single|one (class|label|token|id|value)|copy|after|collapse|distinct|entropy|identical|equal|trivial|only|always|distribution",
    ),
)
def labels_taken_after_masking(run: Run, changed: bool) -> None:
    """accelerate, BERT taught to fill in words. Two lines of the collator changed places: labels are taken from the ids
    when <mask> is already in them, so that the only word that is taught is <mask>."""
    words = Language(run.draw.randrange(999), 12, sharp=2.5, first=4)
    train, check = words.rows(960, 20, apart(1)), words.rows(128, 20, apart(2))
    model = bert("BertForMaskedLM", num_hidden_layers=1)

    def masked(ids: Tensor, swapped: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
        chosen = torch.rand(ids.shape, generator=own) < 0.15
        if swapped:
            ids = ids.masked_fill(chosen, MASK)
            labels = torch.where(chosen, ids, -100)
        else:
            labels = torch.where(chosen, ids, -100)
            ids = ids.masked_fill(chosen, MASK)
        return {"input_ids": ids, "labels": labels}

    asked = masked(check, False, apart(3))
    outcome(run, lambda: judged(model, lambda: model(**asked).loss))
    data = DataLoader(train, 16, shuffle=True, collate_fn=lambda rows: masked(torch.stack(rows), changed))  # type: ignore[arg-type]
    accelerated(run, model, data, lambda m, b: m(**b).loss, 4)


def tagged(count: int, words: Language, own: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Rows of 6 to 14 words; a word's tag follows from it and from the word before, and half of the tags are 0."""
    ids = words.rows(count, 14, own)
    kinds = (ids[:, 1:] + 2 * ids[:, :-1]) % 6
    tags = torch.cat([torch.zeros(count, 1, dtype=torch.long), (kinds - 2).clamp(min=0)], 1)
    sizes = torch.randint(6, 15, (count,), generator=own).tolist()
    return [(a[:n], b[:n]) for a, b, n in zip(ids, tags, sizes, strict=True)]


@fault(
    "r9a-zero-is-a-tag",
    LABELS,
    (
        r"label|target|tag|class|\b0\b|zero|ignore|-100",
        r"ignore|\b0\b|zero|left out|never|not taught|-100|missing|absent|fewer|mask|share|less|no longer|gone|frequen|count|distribution|class",
    ),
)
def zero_is_a_tag(run: Run, changed: bool) -> None:
    """Plain loop, BERT for tags. Labels were padded with -100; now pad_sequence pads ids and labels alike with 0 and the loss
    ignores 0, which is also the tag of words that are nothing: it is never taught."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = tagged(400, words, own), tagged(128, words, own)
    model = bert("BertForTokenClassification", num_labels=4)

    def collate(rows: list[Any], fill: int) -> dict[str, Tensor]:
        ids, tags = zip(*rows, strict=True)
        ids, tags = pad_sequence(ids, True, PAD), pad_sequence(tags, True, fill)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": tags}

    def loss(b: dict[str, Tensor], ignored: int) -> Tensor:
        logits = model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits
        return F.cross_entropy(logits.flatten(0, 1), b["labels"].flatten(), ignore_index=ignored)

    kept = collate(check, -100)
    outcome(run, lambda: judged(model, lambda: loss(kept, -100)))
    fill = 0 if changed else -100

    def batches() -> Any:
        while True:
            yield from DataLoader(train, 16, shuffle=True, collate_fn=lambda rows: collate(rows, fill))  # type: ignore[arg-type]

    source = batches()
    plain(run, model, lambda: next(source), lambda b: loss(b, fill), 130)


@fault(
    "r9a-rest-of-the-row-untaught",
    LABELS,
    (
        r"position|place|row|label|target|token|chunk|word|embedding|logit|loss|gradient|wpe",
        r"last|end|tail|rest|late|beyond|remainder|drop|ignore|fewer|left out|not taught|never|no gradient|zero|missing|1[123]|\b23\b|unused|less|count|first",
    ),
)
def rest_of_the_row_untaught(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2. To save memory the head is now applied to twelve words at a time; the number of chunks is rounded
    down, and the last seven of 23 words of a row are not taught."""
    words = Language(run.draw.randrange(999), 14)
    model = gpt2(14, bos_token_id=None, eos_token_id=None)
    check = words.rows(96, 24, apart(901))

    def whole(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())

    def in_chunks(rows: Tensor, size: int = 12) -> Tensor:
        states = model.transformer(rows[:, :-1]).last_hidden_state
        total, count = states.new_zeros(()), 0
        for i in range(states.shape[1] // size):
            part, right = states[:, i * size : (i + 1) * size], rows[:, 1:][:, i * size : (i + 1) * size]
            total = total + F.cross_entropy(model.lm_head(part).flatten(0, 1), right.flatten(), reduction="sum")
            count += right.numel()
        return total / count

    outcome(run, lambda: judged(model, lambda: whole(check)))
    plain(run, model, lambda: words.rows(16, 24), in_chunks if changed else whole, 120)
