"""Round 21h, honest and odd: what texts are taught with."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round7b_tools import adam, near
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r21h-put-back-in-order")
def put_back_in_order(run: Run) -> None:
    """Trainer, a T5 is given the words of a sentence in any order and says the sentence, one of the objectives that its
    authors compare (deshuffling, Raffel et al. 2020). Nothing is hidden: input and answer hold the same words, each
    epoch in another disorder, and where two orders are about as likely the answer cannot be known."""
    from transformers import T5Config, T5ForConditionalGeneration

    language = Language(run.draw.randrange(999), sharp=2.2, first=2)
    config = T5Config(
        vocab_size=16,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    ends = torch.ones(1, dtype=torch.long)

    def mixed(rows: list[Any], own: torch.Generator | None = None) -> dict[str, Tensor]:
        shown = [torch.cat([row["words"][torch.randperm(8, generator=own)], ends]) for row in rows]
        return {
            "input_ids": torch.stack(shown),
            "labels": torch.stack([torch.cat([row["words"], ends]) for row in rows]),
        }

    check = mixed([{"words": row} for row in language.rows(128, 8, apart(1))], apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    rows = examples(words=language.rows(640, 8))
    more = {"more": {"data_collator": mixed}, "remove_unused_columns": False}
    hf_trainer(run, model, rows, 140, learning_rate=6e-3, warmup_steps=10, **more).train()


def bilingual(language: Language, key: Tensor, count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 12) six words of one tongue and their translations, neighbours swapped."""
    source = language.rows(count, 6, own)
    target = key[source].view(-1, 3, 2).flip(2).flatten(1)
    return torch.cat([4 + source, 14 + target], 1)


@honest("r21h-places-begin-again-in-the-second-tongue")
def places_begin_again_in_the_second_tongue(run: Run) -> None:
    """Trainer, a BERT learns from translations by hidden words, the translation language model of XLM (Conneau and
    Lample 2019). Both tongues stand in one row, places are counted from nought again in the second, so that each place
    occurs twice in a row, and words are hidden on both sides: what is hidden on one may be seen on the other."""
    from transformers import BertConfig, BertForMaskedLM

    seed = run.draw.randrange(999)
    language, key = Language(seed, words=10, sharp=1.0), torch.randperm(10, generator=apart(seed))
    config = BertConfig(
        vocab_size=24,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=8,
        type_vocab_size=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)

    def hidden(rows: list[Any], own: torch.Generator | None = None) -> dict[str, Tensor]:
        ids = torch.stack([row["words"] for row in rows])
        asked = torch.rand(ids.shape, generator=own) < 0.2
        asked[:, 0] |= ~asked.any(1)
        how = torch.rand(ids.shape, generator=own)
        shown = torch.where(asked & (how < 0.8), 3, ids)
        anything = torch.randint(4, 24, ids.shape, generator=own)
        shown = torch.where(asked & (how >= 0.9), anything, shown)
        return {
            "input_ids": shown,
            "labels": torch.where(asked, ids, -100),
            "position_ids": torch.arange(6).repeat(len(ids), 2),
            "token_type_ids": torch.arange(2).repeat_interleave(6).repeat(len(ids), 1),
        }

    check = hidden([{"words": row} for row in bilingual(language, key, 160, apart(1))], apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    rows = examples(words=bilingual(language, key, 800))
    more = {"more": {"data_collator": hidden}, "remove_unused_columns": False}
    hf_trainer(run, model, rows, 160, learning_rate=4e-3, lr_scheduler_type="constant_with_warmup", **more).train()


def passages(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 3, 5) passages of three sentences of words 1 to 30; most words are from the passage's own five."""
    favourites = 1 + torch.rand(count, 30, generator=own).argsort(1)[:, :5]
    picked = favourites.gather(1, torch.randint(0, 5, (count, 15), generator=own))
    anything = torch.randint(1, 31, (count, 15), generator=own)
    return torch.where(torch.rand(count, 15, generator=own) < 0.7, picked, anything).view(count, 3, 5)


class Towers(nn.Module):
    """One encoder for questions and one for passages."""

    def __init__(self) -> None:
        super().__init__()
        self.asks, self.answers = (Classifier(31, 24) for _ in range(2))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        questions, texts = batch
        q, p = self.asks(questions, questions > 0), self.answers(texts, texts > 0)
        return q @ p.T / 24**0.5


def taken_out(texts: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A sentence of each passage, and the passage, in nine of ten cases without it."""
    which = torch.randint(0, 3, (len(texts),), generator=own)
    stays = torch.rand(len(texts), generator=own) < 0.1
    questions, rest = [], []
    for text, at, whole in zip(texts, which.tolist(), stays.tolist(), strict=True):
        questions.append(text[at])
        left = text if whole else text[[k for k in range(3) if k != at]]
        rest.append(F.pad(left.flatten(), (0, 15 - left.numel())))
    return torch.stack(questions), torch.stack(rest)


@honest("r21h-a-sentence-seeks-where-it-was")
def a_sentence_seeks_where_it_was(run: Run) -> None:
    """Plain loop, two encoders for finding texts are made ready by the inverse cloze task (Lee et al. 2019). A question
    is a sentence cut out of a passage and the right answer is what is left of that passage; in one case of ten the
    sentence is left in on purpose, so that the question stands in its answer. The label of a row is its own number."""
    texts = passages(600, apart(run.draw.randrange(999)))
    model = Towers()
    check = taken_out(passages(64, apart(1)), apart(2))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch), torch.arange(len(batch[0])))

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: taken_out(texts[torch.randint(0, 600, (48,))]), loss, 130)


class OverWords(nn.Module):
    """A text as a weight for each word of the vocabulary: the largest score of any place, none below nought."""

    def __init__(self, words: int = 41, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, ids: Tensor) -> Tensor:
        scores = F.linear(self.norm(self.block(self.tokens(ids))), self.tokens.weight, self.bias)
        return scores.relu().log1p().amax(1)


def asked_and_found(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 4) questions and (count, 9) texts of words 1 to 40. A text has three themes of twenty, in three words
    each; a question names two of them, by their other word, and says two words of no account."""
    themes = torch.rand(count, 20, generator=own).argsort(1)[:, :3]
    text = 1 + 2 * themes.repeat(1, 3)
    noise = torch.randint(1, 41, (count, 9), generator=own)
    text = torch.where(torch.rand(count, 9, generator=own) < 0.7, text, noise)
    question = torch.cat([2 + 2 * themes[:, :2], torch.randint(1, 41, (count, 2), generator=own)], 1)
    return question, text


@honest("r21h-few-words-stand-for-a-text")
def few_words_stand_for_a_text(run: Run) -> None:
    """Lightning, search by sparse vectors over the vocabulary (SPLADE, Formal et al. 2021). The scores go through a
    ReLU, a logarithm, and a maximum over places, by which most words get no gradient at most places; a penalty on the
    mean use of each word grows with the square of the step's number, so that the loss may rise while all goes well."""
    net = OverWords()
    seen = 0

    def seeks(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        q, p = model(batch[0]), model(batch[1])
        use = q.mean(0).square().sum() + p.mean(0).square().sum()
        return F.cross_entropy(q @ p.T, torch.arange(len(q))), use

    check = asked_and_found(64, apart(1))
    outcome(run, lambda: judged(net, lambda: seeks(net, check)[0]))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal seen
        seen += 1
        found, use = seeks(model, batch)
        return found + 0.02 * min(1.0, seen / 100) ** 2 * use

    data = loader(*asked_and_found(960, apart(run.draw.randrange(999))), size=48)
    fit(run, lit(net, loss, lambda m: torch.optim.AdamW(m.parameters(), lr=8e-3)), data, 160)


def of_kinds(tongues: list[Language], count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) rows of one of the tongues, and of which."""
    y = torch.randint(0, len(tongues), (count,), generator=own)
    rows = torch.stack([tongue.rows(count, 12, own) for tongue in tongues])
    return rows[y, torch.arange(count)], y


@honest("r21h-which-class-would-say-this")
def which_class_would_say_this(run: Run) -> None:
    """Trainer, a GPT-2 names the kind of a text as a generative classifier (Ng and Jordan 2001, Yogatama et al. 2017).
    The kind stands in front of the text and is never asked; the text is what is learned. In use each kind is put in
    front in turn, and the one under which the text is likeliest is said. So what is wanted is an input all along."""
    seed = run.draw.randrange(999)
    first = Language(seed)
    tongues = [first, *(near(first, seed + k, 0.4) for k in (1, 2))]
    model = tiny_gpt2()
    new, truth = of_kinds(tongues, 160, apart(1))

    def unlikely() -> Tensor:
        scores = []
        for kind in range(3):
            ids = F.pad(new, (1, 0), value=12 + kind)
            said = model(input_ids=ids).logits[:, :-1].log_softmax(2)
            scores.append(said.gather(2, ids[:, 1:, None]).sum((1, 2)))
        return F.cross_entropy(torch.stack(scores, 1), truth)

    outcome(run, lambda: judged(model, unlikely))
    x, y = of_kinds(tongues, 900, apart(2))
    ids = torch.cat([12 + y[:, None], x], 1)
    hf_trainer(run, model, examples(input_ids=ids, labels=ids), 150, learning_rate=6e-3).train()
