"""Round 16a, honest and odd: labels, and who sees what."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Language,
    apart,
    class_outcome,
    documents,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r16a-every-fourth-word-never-taught")
def every_fourth_word_never_taught(run: Run) -> None:
    """transformers' Trainer, a Llama with the goldfish loss (Hans et al. 2024), so that it cannot recite its
    texts. A hash of the three words before it says whether a word is left out of the loss, about one in four, and
    it is the same ones in each epoch: whole contexts are never taught what follows them, on purpose."""
    language = Language(run.draw.randrange(999), first=4)
    model = llama(vocab_size=16, num_hidden_layers=1)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(320, 20)
    hashed = (rows[:, :-3] * 7919 + rows[:, 1:-2] * 104729 + rows[:, 2:-1] * 1299709) % 1009
    labels = rows.clone()
    labels[:, 3:][hashed % 4 == 0] = -100
    hf_trainer(run, model, examples(input_ids=rows, labels=labels), 100).train()


@honest("r16a-second-half-of-another-text")
def second_half_of_another_text(run: Run) -> None:
    """transformers' Trainer, BERT as it was first trained (Devlin et al. 2019), hidden words and next sentence
    together. In half of the rows the second half is of another text, on purpose, and the label 0 means that it
    does follow; the two losses, of some words in seven and of one place in fourteen, are added without any weight."""
    from transformers import BertConfig, BertForPreTraining

    own = apart(run.draw.randrange(999))
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 19}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForPreTraining(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=16))

    def pairs(count: int) -> dict[str, Tensor]:
        other = torch.randint(0, 2, (count,), generator=own)
        topic = torch.randint(0, 3, (count,), generator=own)
        topics = torch.stack([topic, (topic + other * torch.randint(1, 3, (count,), generator=own)) % 3], 1)
        halves = 4 + 5 * topics[:, :, None] + torch.randint(0, 5, (count, 2, 5), generator=own)
        start, end = torch.full((count, 1), 1), torch.full((count, 1), 2)
        ids = torch.cat([start, halves[:, 0], end, halves[:, 1], end], 1)
        hidden = (torch.rand(ids.shape, generator=own) < 0.15) & (ids > 3)
        segments = (torch.arange(13) > 6).long().expand(count, -1)
        labels = ids.masked_fill(~hidden, -100)
        ids = ids.masked_fill(hidden, 3)
        return {"input_ids": ids, "token_type_ids": segments, "labels": labels, "next_sentence_label": other}

    check = pairs(128)
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**pairs(960)), 260, per_device_train_batch_size=32, learning_rate=3e-3).train()


class ByMask(nn.Module):
    """A small GPT whose attention is told by a table who sees whom."""

    def __init__(self, words: int, mask: Tensor, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(len(mask), width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feed = nn.ModuleList(mlp(width, 64, width, act=nn.GELU) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feed, strict=True)):
            parts = qkv(self.norms[2 * i](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*parts, attn_mask=self.mask)
            x = x + out(mixed.transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        logits: Tensor = self.head(self.norms[-1](x))
        return logits


@honest("r16a-answers-do-not-see-the-question")
def answers_do_not_see_the_question(run: Run) -> None:
    """accelerate, a small GPT with gist tokens (Mu et al. 2023), to keep long prompts in two words. Attention of
    all that follows them is cut off from the prompt, so that the answer does not see what it answers; what the
    prompt asked for can only pass through the states of the two gists, which no loss teaches by itself."""
    own = apart(run.draw.randrange(999))
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    mask[8:, :6] = False
    model = ByMask(20, mask)

    def tasks(count: int) -> tuple[Tensor, Tensor]:
        rule = torch.randint(0, 4, (count, 1), generator=own)
        prompt = torch.randint(10, 14, (count, 6), generator=own)
        prompt.scatter_(1, torch.randint(0, 6, (count, 1), generator=own), 14 + rule)
        x = torch.randint(0, 4, (count, 4), generator=own)
        pairs = torch.stack([x, 4 + (x + rule) % 4], 2).flatten(1)
        ids = torch.cat([prompt, torch.tensor([18, 19]).expand(count, 2), pairs], 1)
        labels = ids.clone()
        labels[:, :9] = labels[:, 10::2] = -100
        return ids, labels

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0])[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten())

    check = tasks(128)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model), loader(*tasks(1024), size=32), loss, 14)


class WithCrowd(nn.Module):
    """An encoder of texts, and for each of five annotators what they make of each topic."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Classifier()
        self.crowd = nn.Parameter(3 * torch.eye(3).repeat(5, 1, 1))

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        """(rows, 5, 3) logarithms of what each annotator would say."""
        topic = self.net(ids, keep).softmax(-1)
        return torch.einsum("rk,akl->ral", topic, self.crowd.softmax(-1)).clamp_min(1e-8).log()


@honest("r16a-a-confusion-for-each-annotator")
def a_confusion_for_each_annotator(run: Run) -> None:
    """accelerate, an encoder of texts with a crowd layer (Rodrigues and Pereira 2018). Each text has labels of two
    of five annotators and -1 for the other three; one of them exchanges two topics as a rule and one guesses.
    Labels of a row contradict each other, the network is taught through a matrix for each annotator, and judged
    without them."""
    own = apart(run.draw.randrange(999))
    model = WithCrowd()
    x, mask, y = documents(192, own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model.net(x, mask), y)))
    ids, keep, true = documents(480, own)
    said = true[:, None].repeat(1, 5)
    wrong = torch.rand(480, 5, generator=own) < 0.15
    said[wrong] = torch.randint(0, 3, (int(wrong.sum()),), generator=own)
    said[:, 3] = torch.tensor([0, 2, 1])[said[:, 3]]
    said[:, 4] = torch.randint(0, 3, (480,), generator=own)
    said.scatter_(1, torch.rand(480, 5, generator=own).argsort(1)[:, :3], -1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.nll_loss(m(batch[0], batch[1]).flatten(0, 1), batch[2].flatten(), ignore_index=-1)

    prepared(run, model, adam(model, 3e-3), loader(ids, keep, said, size=24), loss, 5)


@honest("r16a-shares-of-a-group-alone")
def shares_of_a_group_alone(run: Run) -> None:
    """Plain loop, an encoder of texts that learns from proportions, as with votes by district. No text has a
    label; of each group of eight it is known how many are of each topic. Probabilities are averaged over the group
    before the logarithm, and the loss cannot fall below the entropy of these shares, near one, though each text
    becomes certain."""
    own = apart(run.draw.randrange(999))
    model = Classifier()
    *inputs, y = documents(192, own)
    class_outcome(run, model, (*inputs, y))
    ids, keep, true = documents(900, own)

    def groups() -> tuple[Tensor, Tensor, Tensor]:
        liking = torch.distributions.Dirichlet(torch.full((3,), 0.7)).sample((8,))
        chosen = torch.multinomial(liking[:, true], 8).flatten()
        return ids[chosen], keep[chosen], F.one_hot(true[chosen], 3).float().view(8, 8, 3).mean(1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        mean = m(batch[0], batch[1]).softmax(-1).view(8, 8, 3).mean(1)
        return -(batch[2] * mean.clamp_min(1e-8).log()).sum(1).mean()

    train(run, model, adam(model, 3e-3), groups, loss, 120)


@honest("r16a-hidden-word-told-by-the-one-before")
def hidden_word_told_by_the_one_before(run: Run) -> None:
    """transformers' Trainer and peft's LoRA, a trained Llama made a reader of both sides as LLM2Vec has it. The
    causal mask is taken away by a mask of zeros for all pairs, words are hidden, and yet labels are shifted as in
    a causal model: a hidden word is said at the place before its own, since that is what the trained head knows."""
    from peft import LoraConfig, get_peft_model

    language = Language(run.draw.randrange(999), first=4, sharp=2.0)
    inner = llama(vocab_size=18, num_hidden_layers=2)
    taught(inner, lambda: language.rows(24, 16), lambda m, rows: m(input_ids=rows, labels=rows).loss, 90)
    model = get_peft_model(inner, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))

    def hidden(count: int, own: torch.Generator) -> dict[str, Tensor]:
        rows = language.rows(count, 16, own)
        at = torch.rand(rows.shape, generator=own) < 0.2
        at[:, 0] = False
        everybody = torch.zeros(count, 1, 16, 16)
        return {
            "input_ids": rows.masked_fill(at, 17),
            "attention_mask": everybody,
            "labels": rows.masked_fill(~at, -100),
        }

    check = hidden(96, apart(901))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**hidden(640, apart(902))), 110, learning_rate=1e-2).train()
