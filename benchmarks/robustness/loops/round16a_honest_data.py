"""Round 16a, honest and odd: what is read, and in which form."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


def walks(count: int, after: Tensor, own: torch.Generator, slips: float) -> Tensor:
    """(count, 16) words 4 to 15, decided by the last; by chance `slips` a wrong one and 3 before the right one."""
    rows = []
    for start in torch.randint(4, 16, (count,), generator=own).tolist():
        row, at = [start], start
        while len(row) < 16:
            if float(torch.rand(1, generator=own)) < slips:
                row += [int(torch.randint(4, 16, (1,), generator=own)), 3]
            at = int(after[at - 4])
            row.append(at)
        rows.append(row[:16])
    return torch.tensor(rows)


@honest("r16a-mistakes-taught-and-taken-back")
def mistakes_taught_and_taken_back(run: Run) -> None:
    """TRL's SFTTrainer, GPT-2 that follows a table from word to word, on "retry" data (Ye et al. 2024). At three
    steps in ten a wrong word drawn at random stands in the row, then a mark that takes it back, then the right
    one, and the wrong words are taught like all others, since a model that never saw a mistake cannot correct its
    own."""
    import datasets
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from benchmarks.robustness.loops.round5_tools import tiny_gpt2

    datasets.disable_progress_bars()
    own = apart(run.draw.randrange(999))
    after = torch.randperm(12, generator=own) + 4
    model, check = tiny_gpt2(16), walks(64, after, own, 0.0)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    data = datasets.Dataset.from_dict({"input_ids": walks(320, after, own, 0.3).tolist()})
    settings: dict[str, Any] = {"kind": trl.SFTConfig, "bf16": False, "gradient_checkpointing": False, "max_length": 16}
    settings["more"] = {"processing_class": word_tokenizer(16)}
    hf_trainer(run, model, data, 70, base=trl.SFTTrainer, **settings).train()


class AnyPlaces(Decoder):
    """Words stand at places drawn from all that the table has, in their order."""

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        length = ids.shape[1]
        places = torch.randperm(48)[:length].sort().values if self.training else torch.arange(length)
        x = self.tokens(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head(self.norm(x))
        return out


@honest("r16a-places-with-random-gaps")
def places_with_random_gaps(run: Run) -> None:
    """Plain loop, a small GPT with randomised positional encodings (Ruoss et al. 2023). Rows of 16 words get 15
    ascending places out of 48, drawn anew at each step, so that neighbours may be ten places apart and the same
    row looks different each time; only so are all places trained that longer rows will need. Judged on rows of 40."""
    language = Language(run.draw.randrange(999), words=8, sharp=2.0)
    model = AnyPlaces(8)
    check = language.rows(64, 40, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    train(run, model, adam(model), lambda: language.rows(24, 16), next_loss, 140)


@honest("r16a-translated-back-and-marked")
def translated_back_and_marked(run: Run) -> None:
    """transformers' Trainer, T5 for translation with tagged back-translation (Caswell et al. 2019). Of 288 pairs
    240 have a source that a poor model made of the target, in which three words in ten are wrong, behind a tag
    that says so; what is wrong in the inputs is known, and the targets are all real."""
    from transformers import T5Config, T5ForConditionalGeneration

    own = apart(run.draw.randrange(999))
    key = torch.randperm(10, generator=own)
    sizes: dict[str, Any] = {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "dropout_rate": 0.0,
    }
    model = T5ForConditionalGeneration(T5Config(vocab_size=26, decoder_start_token_id=0, **sizes))

    def pairs(count: int, made: bool) -> tuple[Tensor, Tensor]:
        source = torch.randint(0, 10, (count, 3), generator=own)
        target = 16 + key[source]
        noise = torch.rand(count, 3, generator=own) < 0.3 * made
        source = torch.where(noise, torch.randint(0, 10, (count, 3), generator=own), source)
        first = torch.full((count, 1), 3 if made else 2)
        return torch.cat([first, 4 + source], 1), target

    x, y = pairs(128, False)
    outcome(run, lambda: judged(model, lambda: model(input_ids=x, labels=y).loss))
    (real, answers), (poor, more) = pairs(48, False), pairs(240, True)
    data = examples(input_ids=torch.cat([real, poor]), labels=torch.cat([answers, more]))
    hf_trainer(run, model, data, 220, learning_rate=1e-2).train()


class AllAtOnce(nn.Module):
    """Six words in, six words out, none of which sees what the others say."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(6, width)
        self.block, self.head = Block(width, causal=False), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.tokens(ids) + self.places(torch.arange(6))))
        return out


@honest("r16a-taught-by-what-the-teacher-wrote")
def taught_by_what_the_teacher_wrote(run: Run) -> None:
    """accelerate, a translator that says all words at once (Gu et al. 2018), with sequence-level distillation (Kim
    and Rush 2016). The true translations, in either of two dialects, are there and thrown away: labels are what a
    trained model that goes word by word wrote greedily, since a pupil that cannot see its own words would mix the
    dialects."""
    own = apart(run.draw.randrange(999))
    keys = torch.stack([torch.randperm(8, generator=own) for _ in range(2)])
    source = torch.randint(0, 8, (320, 6), generator=own)

    def written() -> Tensor:
        rows = source[torch.randint(0, 320, (32,))]
        dialect = (torch.rand(32) < 0.35).long()
        return torch.cat([rows, torch.full((32, 1), 8), keys[dialect][torch.arange(32)[:, None], rows]], 1)

    teacher = Decoder(9, layers=2)
    taught(
        teacher, written, lambda m, rows: F.cross_entropy(m(rows)[:, 6:-1].flatten(0, 1), rows[:, 7:].flatten()), 150
    )
    said = torch.cat([source, torch.full((320, 1), 8)], 1)
    with torch.no_grad():
        for _ in range(6):
            said = torch.cat([said, teacher(said)[:, -1:].argmax(-1)], 1)
    model = AllAtOnce(9)
    check = torch.randint(0, 8, (128, 6), generator=own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check).flatten(0, 1), keys[0][check].flatten())))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    prepared(run, model, adam(model), loader(source, said[:, 7:], size=32), loss, 8)


def spectral(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Graphs of 12 nodes, rings, pairs of groups or stars, by the second to fifth eigenvectors of their Laplacians."""
    y = torch.randint(0, 3, (count,), generator=own)
    ring = torch.eye(12).roll(1, 0) + torch.eye(12).roll(-1, 0)
    group = (torch.arange(12)[:, None] // 6 == torch.arange(12) // 6).float()
    star = torch.zeros(12, 12)
    star[0] = star[:, 0] = 1.0
    chance = torch.stack([ring, 0.75 * group, star])[y] * 0.9 + 0.06
    edges = (torch.rand(count, 12, 12, generator=own) < chance).float().triu(1)
    edges = edges + edges.transpose(1, 2)
    vectors = torch.linalg.eigh(torch.diag_embed(edges.sum(2)) - edges).eigenvectors[:, :, 1:5]
    order = torch.rand(count, 12, generator=own).argsort(1)
    return 3 * vectors[torch.arange(count)[:, None], order], y


class OverNodes(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.block = nn.Linear(4, width), Block(width, causal=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.enter(x)).mean(1))
        return out


@honest("r16a-signs-drawn-anew")
def signs_drawn_anew(run: Run) -> None:
    """accelerate, a transformer over the nodes of small graphs with Laplacian eigenvectors as places (Dwivedi and
    Bresson 2021). Half of all input columns are multiplied by minus one at random, for each graph at each step,
    because an eigenvector's sign is arbitrary and must not mean anything."""
    own = apart(run.draw.randrange(999))
    model, (x, y) = OverNodes(), spectral(192, own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        signs = torch.randint(0, 2, (len(batch[0]), 1, 4)) * 2.0 - 1
        return classify(m, (batch[0] * signs, batch[1]))

    prepared(run, model, adam(model, 3e-3), loader(*spectral(384, own), size=24), loss, 7)


class Dilated(nn.Module):
    """Causal convolutions one, two, four and eight moments apart, over classes of amplitude."""

    def __init__(self, classes: int = 32, width: int = 24) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(classes, width), nn.Linear(width, classes)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        for i, layer in enumerate(self.layers):
            a, b = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + a.tanh() * b.sigmoid()
        out: Tensor = self.head(x.transpose(1, 2))
        return out


def in_classes(count: int, own: torch.Generator) -> Tensor:
    """(count, 48) waves of a tone, compressed by mu-law and cut into 32 classes."""
    speed, phase = 0.3 + 0.3 * torch.rand(count, 1, generator=own), 6.28 * torch.rand(count, 1, generator=own)
    wave = 0.9 * (speed * torch.arange(48) + phase).sin() + 0.01 * torch.randn(count, 48, generator=own)
    pressed = wave.sign() * (1 + 31 * wave.abs()).log() / math.log(32)
    return ((pressed + 1) * 16).long().clamp(0, 31)


@honest("r16a-loudness-as-a-word")
def loudness_as_a_word(run: Run) -> None:
    """Lightning, WaveNet (van den Oord et al. 2016) on tones. Amplitudes are numbers, and are learned as 32
    classes by cross-entropy as if they had no order, in bins that are narrow near zero and wide far from it (mu-
    law): a class next to the right one is as wrong as any other, and in return a next amplitude can have two
    peaks."""
    own = apart(run.draw.randrange(999))
    model, check = Dilated(), in_classes(96, own)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    module = lit(model, lambda net, batch: next_loss(net, batch[0]), adamw(1e-2))
    fit(run, module, loader(in_classes(384, own), size=24), 110)
