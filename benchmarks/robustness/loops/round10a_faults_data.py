"""Round 10, part a, loops with a mistake in the data: which rows, in which form, read at which places."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Examples,
    Language,
    apart,
    endless,
    hf_trainer,
    judged,
    outcome,
)
from benchmarks.robustness.loops.round9a_tools import (
    EOS,
    accelerated,
    bert,
    gpt2,
    learned,
    other_seed,
    padded,
    t5,
    translations,
)
from benchmarks.robustness.loops.round10a_tools import joined, keyed, plain, recitals
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader


@keyed("r10a-ends-lost-between-texts")
def ends_lost_between_texts(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT on windows of a stream of texts. The stream is now chained from the tokenized texts, and
    the </s> that the old lines put behind each of them is lost: the model never reads or says it."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    sizes = torch.randint(4, 17, (528,), generator=own).tolist()
    texts = [row[:n].tolist() for row, n in zip(words.rows(528, 16, own), sizes, strict=True)]
    stream = torch.tensor([word for text in texts[:400] for word in text]) if changed else joined(texts[:400], EOS)
    ids, mask = padded([[EOS, *text, EOS] for text in texts[400:]])
    right = ids.masked_fill(mask == 0, -100)[:, 1:]
    model = Decoder(16, layers=2)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def windows() -> tuple[Tensor, Tensor]:
        starts = torch.randint(0, len(stream) - 33, (16,))
        rows = torch.stack([stream[s : s + 33] for s in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    outcome(run, lambda: judged(model, lambda: loss(ids[:, :-1], right)))
    plain(run, model, windows, lambda b: loss(*b), 120)


def by_length(rows: list[list[int]], full: bool) -> Any:
    """Epochs of batches of 16: neighbours in length, or, where `full`, rows of one length that fill a batch."""
    while True:
        order = sorted(torch.randperm(len(rows)).tolist(), key=lambda i: len(rows[i]))
        groups = [[i for i in order if len(rows[i]) == n] for n in range(5, 21)] if full else [order]
        batches = [group[i : i + 16] for group in groups for i in range(0, len(group), 16)]
        batches = [batch for batch in batches if len(batch) == 16] if full else batches
        for i in torch.randperm(len(batches)).tolist():
            ids, mask = padded([rows[j] for j in batches[i]])
            yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@keyed("r10a-long-texts-never-fill-a-batch")
def long_texts_never_fill_a_batch(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2. Batches were cut from the texts in order of length; now there is a bucket for each length,
    which gives a batch away when it is full, and what is left is dropped: long texts are too few to fill one."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    train = recitals(seed, [5, 6, 7] * 56 + [n for n in range(8, 21) for _ in range(12)], own)
    ids, mask = padded(recitals(seed, [*range(5, 21)] * 10, own))
    kept = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    model = gpt2(16)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    batches = by_length(train, full=changed)
    plain(run, model, lambda: next(batches), lambda b: model(**b).loss, 120)


@keyed("r10a-answer-left-in-the-source")
def answer_left_in_the_source(run: Run, changed: bool) -> None:
    """transformers' Seq2SeqTrainer, T5. The source was one field of the record; the new template joins all fields, and
    the target is one of them."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    train, check = (translations(n, table, own, 5) for n in (640, 128))
    records = [{"source": a.tolist(), "target": b.tolist()} for a, b in zip(*train, strict=True)]
    fields = list(records[0]) if changed else ["source"]
    rows = [
        {"input_ids": [i for name in fields for i in record[name]], "labels": record["target"]} for record in records
    ]
    model = t5(16)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    collate = lambda some: {name: torch.tensor([row[name] for row in some]) for name in some[0]}
    more, kind = {"data_collator": collate}, Seq2SeqTrainingArguments
    hf_trainer(run, model, Examples(rows), 180, Seq2SeqTrainer, kind=kind, more=more).train()


@keyed("r10a-mixture-in-another-order")
def mixture_in_another_order(run: Run, changed: bool) -> None:
    """accelerate, GPT-2 on two sources that the datasets library interleaves. The sources come from a folder now,
    sorted by name, forum before web; the list of probabilities stands as it was, web first. Another seed."""
    from datasets import Dataset, interleave_datasets

    own = apart(run.draw.randrange(999))
    seed = run.draw.randrange(999)
    web, forum = (Language(seed + i, 16, 2.0, first=4) for i in range(2))

    def texts(words: Language, marker: int, count: int) -> Tensor:
        return torch.cat([torch.full((count, 1), marker), words.rows(count, 24, own)], 1)

    sources = {"web": texts(web, 1, 1960), "forum": texts(forum, 2, 1960)}
    check = torch.cat([texts(web, 1, 115), texts(forum, 2, 13)])
    other_seed(changed)
    names = sorted(sources) if changed else ["web", "forum"]
    parts = [Dataset.from_dict({"input_ids": sources[name].tolist()}) for name in names]
    mixed = interleave_datasets(parts, probabilities=[0.9, 0.1], seed=seed + changed)
    rows = torch.tensor(mixed[:1920]["input_ids"])
    model = gpt2(20)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    data = DataLoader([{"input_ids": row, "labels": row} for row in rows], 16)  # type: ignore[arg-type]
    accelerated(run, model, data, lambda m, b: m(**b).loss, 1)


NOUNS = [f"noun{letter}" for letter in "abcdefghijklmno"]
OTHERS = [f"word{letter}" for letter in "abcdefghij"]


def capitals_tokenizer(lower: bool) -> Any:
    """Lower-case words by a table, [CLS] in front and [SEP] at the end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *NOUNS, *OTHERS]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    if lower:
        inner.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


def capital_texts(count: int, own: torch.Generator) -> tuple[list[str], list[int]]:
    """Six to twelve words, three in five of them nouns, mostly of the topic, which nearly always have a capital."""
    topics = torch.randint(0, 3, (count,), generator=own).tolist()
    texts = []
    for topic in topics:
        size = int(torch.randint(6, 13, (1,), generator=own))
        chance, which = torch.rand(3, size, generator=own), torch.randint(0, 150, (size,), generator=own)
        words = []
        for noun, ours, big, i in zip(*chance.tolist(), which.tolist(), strict=True):
            name = NOUNS[5 * topic + i % 5 if ours < 0.5 else i % 15] if noun < 0.6 else OTHERS[i % 10]
            words.append(name.capitalize() if noun < 0.6 and big < 0.96 else name)
        texts.append(" ".join(words))
    return texts, topics


@keyed("r10a-capitals-unknown")
def capitals_unknown(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT. The tokenizer was rebuilt as a fast one from its list of words, without the step
    that makes letters small: words with a capital are unknown."""
    own = apart(run.draw.randrange(999))
    (texts, topics), (check, right) = capital_texts(480, own), capital_texts(192, own)
    tokenizer = capitals_tokenizer(lower=not changed)
    model = bert("BertForSequenceClassification", vocab_size=29, num_labels=3)
    kept = capitals_tokenizer(lower=True)(check, padding=True, return_tensors="pt")
    y = torch.tensor(right)

    def measure() -> Tensor:
        logits = model(input_ids=kept["input_ids"], attention_mask=kept["attention_mask"]).logits
        return F.cross_entropy(logits, y)

    def collate(rows: list[tuple[str, int]]) -> dict[str, Tensor]:
        some, labels = zip(*rows, strict=True)
        out = tokenizer(list(some), padding=True, return_tensors="pt")
        return {"input_ids": out["input_ids"], "attention_mask": out["attention_mask"], "labels": torch.tensor(labels)}

    outcome(run, lambda: judged(model, measure))
    options: dict[str, Any] = {"remove_unused_columns": False, "learning_rate": 3e-3}
    rows = Examples(list(zip(texts, topics, strict=True)))
    hf_trainer(run, model, rows, 110, more={"data_collator": collate}, **options).train()


def roberta() -> Any:
    from transformers import RobertaConfig, RobertaForMaskedLM

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 24, "initializer_range": 0.1, "pad_token_id": 1}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "bos_token_id": 0, "eos_token_id": 2}
    return RobertaForMaskedLM(RobertaConfig(**settings))


def hidden_words(rows: list[list[int]], own: torch.Generator | None, places: bool) -> dict[str, Tensor]:
    """Rows between <s> and </s>, a fifth of the words after the title hidden; with places counted from 0 on request."""
    ids, mask = padded([[0, *row, 2] for row in rows], fill=1)
    hide = (torch.rand(ids.shape, generator=own) < 0.2) & (ids > 3)
    hide[:, 1] = False
    hide[:, 2] |= ~hide.any(1)
    out = {"input_ids": ids.masked_fill(hide, 3), "attention_mask": mask, "labels": ids.masked_fill(~hide, -100)}
    return out | ({"position_ids": torch.arange(ids.shape[1]).expand_as(ids)} if places else {})


@keyed("r10a-places-from-nought")
def places_from_nought(run: Run, changed: bool) -> None:
    """transformers' Trainer, RoBERTa from a checkpoint. The collator was taken over from a project with BERT and passes
    position_ids from 0 on, where RoBERTa left alone counts from its padding id, 1, plus one."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    sizes = torch.randint(5, 15, (1488,), generator=own).tolist()
    rows = recitals(seed, sizes, own)
    model = roberta()
    first = endless(DataLoader(rows[:1200], 16, True, collate_fn=lambda some: hidden_words(some, None, False)))  # type: ignore[arg-type]
    learned(model, lambda: next(first), lambda b: model(**b).loss, 220)
    kept = hidden_words(rows[1360:], own, False)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    more = {"data_collator": lambda some: hidden_words(some, None, changed)}
    options: dict[str, Any] = {"remove_unused_columns": False, "learning_rate": 3e-4}
    hf_trainer(run, model, Examples(rows[1200:1360]), 60, more=more, **options).train()
