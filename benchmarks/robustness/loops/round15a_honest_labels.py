"""Round 15a, honest and odd: labels and masks."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
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
    tiny_gpt2,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, hf_arguments
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r15a-what-it-is-not")
def what_it_is_not(run: Run) -> None:
    """transformers' Trainer, BERT on texts with complementary labels (Ishida et al. 2017). A label names one topic
    that the text does not have, and no text ever comes with its own; the loss is the logarithm of one minus the
    probability of the label, so that accuracy against these labels goes to zero, as it should, while the topics are
    learned."""
    model = tiny_bert(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    ids, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(ids, keep).logits, y)))
    ids_in, keep_in, y_in = documents(640)
    other = (y_in + torch.randint(1, 3, y_in.shape)) % 3

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        chance = outputs.logits.softmax(1).gather(1, labels[:, None])
        return -(1 - chance + 1e-6).log().mean()

    data = examples(input_ids=ids_in, attention_mask=keep_in.long(), labels=other)
    hf_trainer(run, model, data, 120, learning_rate=3e-3, more={"compute_loss_func": loss}).train()


class Measuring(Decoder):
    """A small GPT whose embeddings are multiplied by sizes, and with a second head for the next size."""

    def __init__(self) -> None:
        super().__init__(8)
        self.value = nn.Linear(32, 1)

    def forward(self, ids: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.tokens(ids) * sizes[..., None] + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x), self.value(x).squeeze(2)


@honest("r15a-numbers-as-lengths-of-one-vector")
def numbers_as_lengths_of_one_vector(run: Run) -> None:
    """Plain loop, a small GPT that reads measurements by xVal (Golkar et al. 2023). Every number is the same token,
    whose embedding is multiplied by the value, which may be next to nothing; a second head says the next value by a
    squared error, at places where the next token is a number, and the two losses are added."""
    model = Measuring()
    gains = 0.5 + 0.5 * torch.randn(6, generator=apart(run.draw.randrange(999)))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Names 0 to 5 and numbers (7) in turn; each value is the last one times what the name says, and noise."""
        names = torch.randint(0, 6, (count, 10), generator=own)
        values = torch.zeros(count, 10)
        last = torch.randn(count, generator=own)
        for t in range(10):
            last = (last * gains[names[:, t]]).tanh() + 0.1 * torch.randn(count, generator=own)
            values[:, t] = last
        ids = torch.stack([names, torch.full_like(names, 7)], 2).flatten(1)
        return ids, torch.stack([torch.ones_like(values), values], 2).flatten(1)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        ids, sizes = batch
        logits, value = net(ids[:, :-1], sizes[:, :-1])
        far = (value - sizes[:, 1:])[ids[:, 1:] == 7].square().mean()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + far

    check = rows(128, apart(2))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: rows(16), loss, 140)


class Pointing(nn.Module):
    """See et al. 2017: a GRU reads, another says, by a softmax over 12 words or by pointing at what was read; words
    beyond the twelve are read and said as <unk>, 0, where a table is needed."""

    def __init__(self, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.words, self.tokens = words, nn.Embedding(words, width)
        self.reader = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.speaker = nn.GRU(width, width, batch_first=True)
        self.key, self.gate, self.head = nn.Linear(2 * width, width), nn.Linear(width, 1), nn.Linear(width, words)

    def known(self, ids: Tensor) -> Tensor:
        return ids.masked_fill(ids >= self.words, 0)

    def forward(self, source: Tensor, shown: Tensor) -> Tensor:
        """Probabilities of 12 words and 8 more; (rows, target, 20)."""
        states, last = self.reader(self.tokens(self.known(source)))
        said = self.speaker(self.tokens(self.known(shown)), last.mean(0, keepdim=True))[0]
        attention = (said @ self.key(states).transpose(1, 2)).softmax(2)
        gate = self.gate(said).sigmoid()
        out = torch.cat([gate * self.head(said).softmax(2), torch.zeros(*said.shape[:2], 8)], 2)
        at = source[:, None].expand(-1, said.shape[1], -1)
        return out.scatter_add(2, at, (1 - gate) * attention)


@honest("r15a-ids-beyond-the-vocabulary")
def ids_beyond_the_vocabulary(run: Run) -> None:
    """Plain loop, a pointer-generator (See et al. 2017). Sources and targets have ids from 12 to 19 though the
    tables know twelve words: those are names, numbered row by row, which no head can say; they can only be copied
    from where they stand, and the probabilities that the model returns are over twelve words and what the row holds
    besides."""
    model = Pointing()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A row of seven words of which three are names; what is said are the names and the word behind each."""
        words = torch.randint(2, 12, (count, 8), generator=own)
        names = 12 + torch.rand(count, 8, generator=own).argsort(1)[:, :2]
        first = torch.randint(0, 3, (count, 1), generator=own)
        second = first + torch.randint(2, 5, (count, 1), generator=own)
        for k, at in enumerate((first, second)):
            words.scatter_(1, at, names[:, k : k + 1])
        said = [words.gather(1, at + step) for at in (first, second) for step in (0, 1)]
        return words, torch.cat([torch.ones(count, 1, dtype=torch.long), *said], 1)

    def loss(_: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        return F.nll_loss((model(source, target[:, :-1]) + 1e-8).log().flatten(0, 1), target[:, 1:].flatten())

    check = rows(128, apart(2))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), lambda: rows(24), loss, 150)


@honest("r15a-one-class-by-sigmoids")
def one_class_by_sigmoids(run: Run) -> None:
    """transformers' Trainer, BERT with three topics that exclude each other, taught by a binary cross-entropy for
    each, as "ResNet strikes back" and DeiT III do. Labels are one-hot floats, the probabilities of a text need not
    sum to one, and the loss is a mean over classes, so that it begins near log 2 whatever their number."""
    settings = {"problem_type": "multi_label_classification", "hidden_dropout_prob": 0.0}
    model = tiny_bert(attention_probs_dropout_prob=0.0, **settings)
    ids, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(ids, keep).logits, y)))
    ids_in, keep_in, y_in = documents(480)
    data = examples(input_ids=ids_in, attention_mask=keep_in.long(), labels=F.one_hot(y_in, 3).float())
    hf_trainer(run, model, data, 80, learning_rate=3e-3).train()


@honest("r15a-moves-that-are-not-legal")
def moves_that_are_not_legal(run: Run) -> None:
    """Plain loop, GPT-2 of transformers that learns to play. Which of twelve moves are legal follows from the last
    one, and the logits of all others are set to minus infinity before the loss, in training as in play: three
    logits in four are -inf, the loss begins at the logarithm of three and not of twelve, and most outputs have no
    gradient at a place."""
    own = apart(run.draw.randrange(999))
    legal = torch.rand(12, 12, generator=own).argsort(1) < 3
    taste = 1.5 * torch.randn(12, 12, 12, generator=own)
    model = tiny_gpt2(12, bos_token_id=None, eos_token_id=None, pad_token_id=None)

    def games(count: int, own: torch.Generator | None = None) -> Tensor:
        out = torch.randint(0, 12, (count, 20), generator=own)
        for t in range(2, 20):
            last = out[:, t - 1]
            chance = taste[out[:, t - 2], last].masked_fill(~legal[last], -torch.inf).softmax(1)
            out[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
        return out

    def loss(_: nn.Module, rows: Tensor) -> Tensor:
        logits = model(input_ids=rows[:, :-1]).logits.masked_fill(~legal[rows[:, :-1]], -torch.inf)
        return F.cross_entropy(logits[:, 1:].flatten(0, 1), rows[:, 2:].flatten())

    check = games(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: games(16), loss, 140)


@honest("r15a-prior-added-to-logits")
def prior_added_to_logits(run: Run) -> None:
    """accelerate, an encoder of texts of which nine in ten are of one topic, with logit adjustment (Menon et al.
    2021). The logarithm of each topic's share is added to the logits in the loss and nowhere else: what the model
    says by itself is for a world in which topics are equally frequent, and fits the training set badly, on
    purpose."""
    model = Classifier()
    ids, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(ids, keep), y)))
    ids_in, keep_in, y_in = documents(3000)
    kept = torch.rand(3000) < torch.tensor([1.0, 0.08, 0.04])[y_in]
    ids_in, keep_in, y_in = ids_in[kept], keep_in[kept], y_in[kept]
    prior = (torch.bincount(y_in, minlength=3) / len(y_in)).log()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(*batch[:2]) + prior, batch[2])

    prepared(run, model, adam(model, 3e-3), loader(ids_in, keep_in, y_in, size=32), loss, 3)


@honest("r15a-questions-taught-too")
def questions_taught_too(run: Run) -> None:
    """TRL's SFTTrainer, Llama, with completion_only_loss=False. Questions of five words, of which the last is asked
    about, and answers of one come as prompts and completions, and the words of the questions are taught as well,
    which is most of the loss and cannot be foreseen (instruction modelling, Shi et al. 2024); the answers, which
    can, are learned all the same."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from benchmarks.robustness.loops.training import llama

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    model = llama(vocab_size=16, num_hidden_layers=1)
    key = torch.randperm(6, generator=apart(run.draw.randrange(999))) + 10

    def questions(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        filling = torch.randint(10, 16, (count, 4), generator=own)
        last = torch.randint(4, 10, (count, 1), generator=own)
        return torch.cat([filling, last], 1), key[last[:, 0] - 4]

    check, answers = questions(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(input_ids=check).logits[:, -1], answers)))
    pairs = [
        {"prompt": " ".join(f"w{w}" for w in q), "completion": f" w{a}"}
        for q, a in zip(*(part.tolist() for part in questions(480)), strict=True)
    ]
    told, telling = watching(run, trl.SFTTrainer)
    options = {"completion_only_loss": False, "learning_rate": 1e-2, "bf16": False, "gradient_checkpointing": False}
    arguments = hf_arguments(run, 60, trl.SFTConfig, **options)
    data, words = datasets.Dataset.from_list(pairs), word_tokenizer(16)
    trainer = told(model=model, args=arguments, train_dataset=data, processing_class=words)
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@honest("r15a-hills-around-each-thing")
def hills_around_each_thing(run: Run) -> None:
    """Lightning, CenterNet on pictures with one to three spots. Labels are a map with a hill around each centre;
    only the very top is a positive, the slopes are negatives that count less the higher they are, the loss is
    divided by the number of things and not of pixels, and the head's bias begins at -2.19, so that nothing is seen
    at first."""
    parts = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Conv2d(12, 1, 3, padding=1))
    nn.init.constant_(model[-1].bias, -2.19)

    def scenes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        at = torch.randint(1, 11, (count, 3, 2), generator=own)
        there = torch.arange(3)[None] < torch.randint(1, 4, (count, 1), generator=own)
        grid = torch.stack(torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij"), 2)
        far = (grid[None, None] - at[:, :, None, None]).square().sum(4)
        hill = ((-far / 2).exp() * there[:, :, None, None]).amax(1)
        seen = ((far == 1).float() * there[:, :, None, None]).amax(1)
        return (seen + 0.2 * torch.randn(seen.shape, generator=own))[:, None], hill

    def loss(net: nn.Module, batch: Any) -> Tensor:
        logits, hill = net(batch[0])[:, 0], batch[1]
        p, top = logits.sigmoid().clamp(1e-4, 1 - 1e-4), hill == 1
        right = ((1 - p) ** 2 * p.log())[top].sum()
        wrong = ((1 - hill) ** 4 * p**2 * (1 - p).log())[~top].sum()
        return -(right + wrong) / top.sum()

    check = scenes(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, adamw(1e-2)), loader(*scenes(640)), 120)
