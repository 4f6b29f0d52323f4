"""Round 13a, honest and odd: models and layers."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    documents,
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
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round13a_parts import Beats, Letters, SmallRWKV
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13a-batch-norm-in-a-model-of-letters")
def batch_norm_in_a_model_of_letters(run: Run) -> None:
    """Plain loop, names letter by letter from windows of three, as a well-known course has it. The hidden layer has no
    bias and a batch norm over windows behind it, in a model of text; the last matrix is made ten times smaller so that
    all letters are equally likely at first, and plain SGD goes at 0.5, then at a tenth."""
    language = Language(run.draw.randrange(999), words=15, first=1)

    def windows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        names = F.pad(F.pad(language.rows(count, 7, own), (3, 0)), (0, 1))
        cut = names.unfold(1, 4, 1).flatten(0, 1)
        return cut[:, :3], cut[:, 3]

    model = Letters(16)
    class_outcome(run, model, windows(96, apart(1)))
    x, y = windows(600, apart(run.draw.randrange(2, 999)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [800], gamma=0.1)

    def batch() -> tuple[Tensor, Tensor]:
        at = torch.randint(0, len(x), (64,))
        return x[at], y[at]

    train(run, model, optimizer, batch, classify, 1000, schedule)


@honest("r13a-half-from-the-word-before")
def half_from_the_word_before(run: Run) -> None:
    """Plain loop, RWKV-4: no attention, each channel forgets at a rate of its own, and layers read a mixture of this
    word and the one before. It begins as its authors have it, with vectors of words within 0.0001 of zero, a norm right
    behind them, and most matrices of every block at zero exactly."""
    language = Language(run.draw.randrange(999))
    model = SmallRWKV(12)
    text_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(12, 24), next_loss, 120, clip=1.0)


@honest("r13a-fourier-in-place-of-attention")
def fourier_in_place_of_attention(run: Run) -> None:
    """transformers' Trainer, FNet. Words are mixed by the real part of a Fourier transform over places and channels,
    which has no weights, and there is no attention mask: padding is mixed in like a word, as it will be in use, since
    all rows are padded to twelve."""
    from transformers import FNetConfig, FNetForSequenceClassification

    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 12, "num_labels": 3, "pad_token_id": 0, "hidden_dropout_prob": 0.0}
    model = FNetForSequenceClassification(FNetConfig(**sizes))
    ids, _, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=y).loss))
    rows, _, labels = documents(600, apart(run.draw.randrange(2, 999)))
    hf_trainer(run, model, examples(input_ids=rows, labels=labels), 120).train()


@honest("r13a-shared-random-matrices")
def shared_random_matrices(run: Run) -> None:
    """transformers' Trainer and peft, a Llama tuned by VeRA. All adapters share one pair of random matrices that never
    learn; each has two vectors of its own, one of which begins at zero, which makes one weight in thirty. The rate is
    ten times that of LoRA, as its authors advise."""
    from peft import VeraConfig, get_peft_model

    seed = run.draw.randrange(999)
    language = Language(seed, first=4)
    base = llama(vocab_size=16, num_key_value_heads=4, initializer_range=0.1)
    taught(base, lambda: language.rows(16, 20), lambda m, rows: m(input_ids=rows, labels=rows).loss, 80)
    other = near(language, seed + 1, 0.6)
    other.first = 4
    config = VeraConfig(r=16, target_modules="all-linear", projection_prng_key=seed, d_initial=0.1)
    model = get_peft_model(base, config)
    check, rows = other.rows(96, 20, apart(1)), other.rows(480, 20)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80, learning_rate=5e-2).train()


@honest("r13a-each-series-by-its-own-level")
def each_series_by_its_own_level(run: Run) -> None:
    """Lightning, N-BEATS for series of sales between 1 and 100 000 a month. Data are not normalised; the model divides
    each row by its own last value and multiplies what it says by it. Each block takes off what it can explain before
    the next one reads, and the loss is sMAPE in per cent, the measure of the M4 competition, whose denominator has no
    gradient."""

    def series(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        scale = 10 ** (5 * torch.rand(count, 1, generator=own))
        phase, growth = 6.28 * torch.rand(count, 1, generator=own), 0.04 * torch.randn(count, 1, generator=own)
        month = torch.arange(18)
        sales = (1 + 0.5 * (month * 6.28 / 6 + phase).sin()) * (growth * month).exp()
        sales = scale * sales * (0.05 * torch.randn(count, 18, generator=own)).exp()
        return sales[:, :14], sales[:, 14:]

    def loss(net: nn.Module, batch: Any) -> Tensor:
        said, true = net(batch[0]), batch[1]
        return 200 * ((said - true).abs() / (said.abs() + true.abs()).detach()).mean()

    model, check = Beats(14, 4), series(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    rows = loader(*series(800, apart(run.draw.randrange(2, 999))), size=32)
    fit(run, lit(model, loss, lambda net: torch.optim.Adam(net.parameters(), lr=2e-3)), rows, 350)


class Sigmoid(nn.Module):
    """Attention whose weights are sigmoids, less the logarithm of the row's length at first (Ramapuram et al. 2024)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.level = nn.Parameter(torch.tensor(-math.log(length)))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(x.shape[-1]) + self.level
        out: Tensor = self.out(scores.sigmoid().tril() @ v)
        return out


@honest("r13a-weights-that-need-not-sum-to-one")
def weights_that_need_not_sum_to_one(run: Run) -> None:
    """Plain loop, a small GPT with sigmoids in place of attention's softmax. The weights of a word do not sum to one,
    words at the end of a row may take more than words at its beginning, and a bias that begins at minus the logarithm
    of the length keeps the sums near one at first."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for block in model.blocks:
        block.attention = Sigmoid(32, 24)
    text_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(12, 24), next_loss, 120)
