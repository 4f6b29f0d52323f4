"""What the changed loops of round 8b share: small models of transformers, their tasks and measures, another seed.

A fault's category is the part of a training step in which its change lies: data, what goes into the model; labels, which
labels are taught and which are left out; model, architecture, weights at the start, forward pass; loss, its formula and
reduction; gradient, backward, clipping, accumulation; update, optimizer, rate, schedule, decay, averages, and whatever
else moves weights, keeps them or decides which of them learn.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Language, apart, documents, judged, outcome
from torch import Tensor, nn
from torch.nn import functional as F

DATA, MODEL, LOSS, GRADIENT, UPDATE = "data", "model", "loss", "gradient", "update"


def reseeded(run: Run, changed: bool) -> None:
    """The changed loop has another seed."""
    seed = run.draw.randrange(2**31)
    if changed:
        torch.manual_seed(seed)
        random.seed(seed)


def llama(words: int = 12, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    settings |= {"vocab_size": words, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**(settings | options)))


def t5(words: int = 14) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    settings |= {"dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": None}
    return T5ForConditionalGeneration(T5Config(vocab_size=words, **settings))


def masked_bert(words: int = 14, **options: Any) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": words}
    return BertForMaskedLM(BertConfig(**(settings | options)))


def lagged(seed: int, words: int = 12) -> Language:
    """Texts in which the next word depends on the last but one alone."""
    language = Language(seed, words, sharp=2.0)
    language.one.zero_()
    return language


def causal_loss(model: Any, rows: Tensor) -> Tensor:
    """The next token's cross-entropy, by the model itself."""
    loss: Tensor = model(input_ids=rows, labels=rows).loss
    return loss


def causal_outcome(run: Run, model: Any, language: Language, length: int = 20) -> None:
    check = language.rows(96, length, apart(901))
    outcome(run, lambda: judged(model, lambda: causal_loss(model, check)))


def translated(count: int, table: Tensor, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Rows of words 2.. and the same rows in another language, word by word."""
    source = torch.randint(2, len(table), (count, 8), generator=own)
    return {"input_ids": source, "labels": table[source]}


def word_table(seed: int, words: int = 14) -> Tensor:
    return torch.cat([torch.arange(2), torch.randperm(words - 2, generator=apart(seed)) + 2])


def texts(count: int, own: torch.Generator | None = None, classes: int = 3) -> dict[str, Tensor]:
    """Padded texts as BERT's classifier takes them."""
    x, mask, y = documents(count, own, classes=classes)
    return {"input_ids": x, "attention_mask": mask.long(), "labels": y}


def told_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def text_class_outcome(run: Run, model: Any, check: dict[str, Tensor]) -> None:
    outcome(run, lambda: judged(model, lambda: told_loss(model, check)))


def steps(
    run: Run,
    model: nn.Module,
    optimizer: Any,
    batch: Callable[[], Any],
    loss: Callable[[Any, Any], Tensor],
    count: int,
    between: Callable[[], Any] = lambda: None,
    after: Callable[[int], Any] = lambda step: None,
    **told: Any,
) -> None:
    """A plain loop; `between` comes after the backward pass, `after` after the step."""
    doctor = run.watch(model, optimizer, **told)
    for step in range(count):
        data = batch()
        optimizer.zero_grad()
        value = loss(model, data)
        value.backward()
        between()
        optimizer.step()
        doctor.step(value, data)
        run.note(value)
        after(step)


def log_probabilities(model: nn.Module, rows: Tensor, start: int) -> Tensor:
    """Of each row's tokens from `start` on, summed: (rows,)."""
    found = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
    return found[:, start - 1 :].sum(1)


def preferred(language: Language, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Answers to prompts of four words, twice: liked, where the answer keeps to the upper half of the words more often."""
    both = [language.rows(2 * count, 12, own) for _ in range(2)]
    high = [(rows[:, 4:] >= language.words // 2).sum(1) for rows in both]
    better = (high[0] >= high[1])[:, None]
    good, bad = torch.where(better, *both), torch.where(better, both[1], both[0])
    bad = torch.cat([good[:, :4], bad[:, 4:]], 1)
    return good[:count], bad[:count]


def dpo_loss(margins: Tensor, reference: Tensor, beta: float = 0.5) -> Tensor:
    """Both are log probabilities of liked less disliked: (rows,)."""
    return -F.logsigmoid(beta * (margins - reference)).mean()
