"""Round 17a, honest and odd: what is asked of models of words."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    documents,
    examples,
    hf_arguments,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    tiny_gpt2,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round10a_tools import tuned
from torch import Tensor, nn
from torch.nn import functional as F


class AllButOwn(nn.Module):
    """Each place, which knows only where it is, looks twice at the words of all other places; these words stay as they
    are."""

    def __init__(self, words: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Parameter(0.3 * torch.randn(length, width))
        self.looks = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(width) for _ in range(4)), nn.Linear(width, words)
        self.register_buffer("own", torch.eye(length, dtype=torch.bool))

    def forward(self, ids: Tensor) -> Tensor:
        seen = self.tokens(ids) + self.places
        h = self.places.expand(len(ids), -1, -1)
        for i, (look, feed) in enumerate(zip(self.looks, self.feeds, strict=True)):
            h = h + look(self.norms[2 * i](h), seen, seen, attn_mask=self.own, need_weights=False)[0]
            h = h + feed(self.norms[2 * i + 1](h))
        out: Tensor = self.head(h)
        return out


@honest("r17a-every-word-asked-and-none-hidden")
def every_word_asked_and_none_hidden(run: Run) -> None:
    """accelerate, a language model of both sides at once, T-TA (Shin et al. 2020). Labels are the inputs, neither
    moved nor hidden, all of them are asked, and what stands to the right is seen as well; the answer still does not
    leak, because the diagonal of attention is masked, what looks is a place without its word, and words are not
    changed from layer to layer."""
    language = Language(run.draw.randrange(999), sharp=2.0)
    model = AllButOwn(12, 16)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[0].flatten())

    check = [language.rows(128, 16, apart(1))]
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    prepared(run, model, optimizer, loader(language.rows(480, 16), size=24), loss, 7)


def with_pattern(count: int, own: torch.Generator, honest_share: float) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 14) texts, "about" (19) and a word of a topic, 16 to 18, the right one in so many rows; what to attend
    to; the topic."""
    ids, keep, y = documents(count, own)
    right = torch.rand(count, generator=own) < honest_share
    word = 16 + torch.where(right, y, torch.randint(0, 3, (count,), generator=own))
    ids = torch.cat([torch.full((count, 1), 19), word[:, None], ids], 1)
    return ids, torch.cat([torch.ones(count, 2, dtype=torch.bool), keep], 1), y


class ByAWord(nn.Module):
    """What a masked model says at a hidden word, of three words alone."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(input_ids=input_ids, attention_mask=attention_mask).logits[:, 1, 16:19]
        out = {"logits": logits}
        return out if labels is None else {"loss": F.cross_entropy(logits, labels), **out}


@honest("r17a-classes-are-three-words-of-the-vocabulary")
def classes_are_three_words_of_the_vocabulary(run: Run) -> None:
    """transformers' Trainer, pattern-exploiting training of a masked BERT with 48 texts (Schick and Schuetze 2021).
    There is no new head: a mask stands behind "about", and of the vocabulary's 22 scores at this place those of three
    words are taken for a softmax, all others are left out of the loss, also where the model thinks one of them more
    likely."""
    from transformers import BertConfig, BertForMaskedLM

    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    body = BertForMaskedLM(
        BertConfig(**size, intermediate_size=64, vocab_size=22, max_position_embeddings=16, hidden_dropout_prob=0.0)
    )
    own = apart(run.draw.randrange(999))

    def pretraining(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, keep, _ = batch
        hidden = (torch.rand(ids.shape, generator=own) < 0.2) & keep
        labels = ids.masked_fill(~hidden, -100)
        out: Tensor = body(input_ids=ids.masked_fill(hidden, 20), attention_mask=keep.long(), labels=labels).loss
        return out

    tuned(body, lambda: with_pattern(24, own, 0.4), pretraining, 60)
    model = ByAWord(body)
    ids, keep, y = with_pattern(256, apart(1), 1.0)
    ids[:, 1] = 20
    outcome(run, lambda: judged(model, lambda: model(ids, keep.long(), y)["loss"]))
    few, keep_few, y_few = with_pattern(48, apart(2), 1.0)
    few[:, 1] = 20
    data = examples(input_ids=few, attention_mask=keep_few.long(), labels=y_few)
    hf_trainer(run, model, data, 90, learning_rate=2e-3, warmup_steps=6).train()


@honest("r17a-taught-to-say-that-it-is-unsure")
def taught_to_say_that_it_is_unsure(run: Run) -> None:
    """TRL's SFTTrainer, a GPT-2 by refusal-aware tuning (R-Tuning, Zhang et al. 2024). Before it starts the model is
    asked all questions, and where it is wrong the true answer is thrown away and "unsure" is taught in its place: half
    of the labels are one and the same word and false if taken for answers, so that it says what it knows and makes
    nothing up."""
    import datasets
    import transformers
    import trl

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    model, keys = tiny_gpt2(24), torch.arange(4, 16)
    answers = 16 + torch.randint(0, 6, (12,), generator=apart(run.draw.randrange(999)))
    known = torch.randperm(12, generator=apart(3))[:6]
    pairs = torch.stack([keys, answers], 1)[known]
    tuned(model, lambda: pairs, lambda rows: model(input_ids=rows, labels=rows).loss, 40, rate=1e-2)
    with torch.no_grad():
        right = model(input_ids=keys[:, None]).logits[:, -1].argmax(1) == answers
    taught = torch.where(right, answers, torch.tensor(22))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(input_ids=keys[:, None]).logits[:, -1], taught)))
    asked = [run.draw.randrange(12) for _ in range(320)]
    rows = [{"prompt": f"w{keys[i]}", "completion": f" w{taught[i]}"} for i in asked]
    told, telling = watching(run, trl.SFTTrainer)
    settings: dict[str, Any] = {"learning_rate": 2e-3, "bf16": False, "gradient_checkpointing": False}
    arguments = hf_arguments(run, 100, trl.SFTConfig, **settings)
    data = datasets.Dataset.from_list(rows)
    trainer = told(model=model, args=arguments, train_dataset=data, processing_class=word_tokenizer(24))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@honest("r17a-teacher-with-other-words")
def teacher_with_other_words(run: Run) -> None:
    """accelerate, a GPT-2 taught by one of another vocabulary, by universal logit distillation (Boizard et al. 2024).
    Words of the two have nothing to do with each other, so both lists of probabilities are sorted, filled up with
    zeros and compared entry by entry: the teacher's most likely word with the pupil's most likely one, whichever words
    these are."""
    language = Language(run.draw.randrange(999))
    teacher, model = tiny_gpt2(30), tiny_gpt2(14)
    other = 18 + torch.randperm(12, generator=apart(4))
    own = apart(run.draw.randrange(999))
    tuned(teacher, lambda: other[language.rows(16, 20, own)], lambda r: teacher(input_ids=r, labels=r).loss, 60, 8e-3)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def loss(model: Any, batch: list[Tensor]) -> Tensor:
        said = model(input_ids=batch[0], labels=batch[0])
        with torch.no_grad():
            heard = teacher(input_ids=other[batch[0]]).logits.softmax(-1).sort(-1, descending=True).values
        mine = F.pad(said.logits.softmax(-1).sort(-1, descending=True).values, (0, 16))
        out: Tensor = said.loss + 1.5 * (mine - heard).abs().sum(-1).mean()
        return out

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    prepared(run, model, optimizer, loader(language.rows(320, 20)), loss, 12)


class ThreeQuestions(nn.Module):
    """An encoder of texts with three heads: topic, a long text or a short one, and whether the first word is an even
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Parameter(0.3 * torch.randn(12, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.heads = nn.ModuleList(nn.Linear(32, n) for n in (3, 2, 2))

    def forward(self, ids: Tensor) -> list[Tensor]:
        padding = ids == 0
        h = self.block(self.tokens(ids) + self.places, src_key_padding_mask=padding)
        h = h.masked_fill(padding[..., None], 0)
        pooled = h.sum(1) / (~padding).sum(1, keepdim=True)
        return [self.heads[0](pooled), self.heads[1](pooled), self.heads[2](h[:, 0])]


def each_loss(answers: list[Tensor], labels: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(a, labels[:, i]) for i, a in enumerate(answers)])


def questions(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    ids, keep, y = documents(count, own)
    return ids, torch.stack([y, (keep.sum(1) > 8).long(), ids[:, 0] % 2], 1)


@honest("r17a-weights-of-tasks-by-lot")
def weights_of_tasks_by_lot(run: Run) -> None:
    """transformers' Trainer, an encoder of texts with three tasks by random loss weighting (Lin et al. 2022). In each
    step the three weights are a softmax of three numbers drawn from a normal distribution, whatever the losses are:
    the total jumps by lot and cannot be compared with that of the step before, and in the mean over steps all tasks
    count alike."""

    def drawn(answers: Any, labels: Tensor) -> Tensor:
        return torch.randn(3).softmax(0) @ each_loss(answers, labels)

    model = WithLoss(ThreeQuestions(), drawn)
    check, right = questions(256, apart(1))
    outcome(run, lambda: judged(model, lambda: each_loss(model.net(check), right).mean()))
    ids, labels = questions(480)
    rows = Examples([{"x": a, "labels": b} for a, b in zip(ids, labels, strict=True)])
    hf_trainer(run, model, rows, 170, per_device_train_batch_size=24, warmup_steps=10).train()
