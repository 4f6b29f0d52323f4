"""Round 19a, honest and odd: kinds of model for words, pairs and pictures."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Examples,
    apart,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    table,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import update
from benchmarks.robustness.loops.round19a_honest_data import waves
from torch import Tensor, nn
from torch.nn import functional as F


def eighths(x: Tensor) -> Tensor:
    return (1.3 * x + 4).long().clamp(0, 7)


class AnyOrder(Examples):
    """Rows of a table as texts of column, value, column, value; the columns in another order each time."""

    def __getitem__(self, index: int) -> Any:
        values = self.rows[index]
        order = torch.randperm(len(values))
        ids = torch.stack([3 + order, 9 + 8 * order + values[order]], 1).flatten()
        return {"input_ids": ids, "labels": ids}


@honest("r19a-columns-in-any-order")
def columns_in_any_order(run: Run) -> None:
    """Trainer, a GPT that learns a table in order to make up rows like it (GReaT, Borisov et al. 2023). Each row is
    read as a text of columns and values, in another order whenever it is met, so that any column can be asked first.
    Half of all words name the next column, which is drawn and cannot be known: the loss stays high, as it must, and
    the same row has a different text and different labels in each epoch."""
    seed = run.draw.randrange(999)
    mix = torch.eye(6) + 0.9 * torch.randn(6, 6, generator=apart(seed)).triu(1)
    mix = mix / mix.norm(dim=0)
    rows = eighths(torch.randn(1600, 6, generator=apart(2)) @ mix)
    held = AnyOrder(list(eighths(torch.randn(96, 6, generator=apart(1)) @ mix)))
    model = tiny_gpt2(9 + 48)

    def measure() -> Tensor:
        ids = torch.stack([held[i]["input_ids"] for i in range(len(held))])
        scores = model(input_ids=ids).logits[:, :-1]
        return F.cross_entropy(scores[:, ::2].flatten(0, 1), ids[:, 1::2].flatten())

    outcome(run, lambda: judged(model, measure))
    hf_trainer(run, model, AnyOrder(list(rows)), 150, per_device_train_batch_size=32, warmup_steps=10).train()


NOUN, VERB, BEFORE_NOUN, WITH_VERB = range(4)


def trees(count: int, own: torch.Generator | None = None, length: int = 12) -> dict[str, Tensor]:
    """Right-padded sentences of words 2 to 33, eight of each kind, and the place of the word that governs each: nought
    (the root) for the one verb, the next noun for what stands before a noun, the verb for all others. Nought is
    padding, and its governor -100."""
    ids, heads = torch.zeros(count, length, dtype=torch.long), torch.full((count, length), -100)
    for row in range(count):
        size = int(torch.randint(5, length + 1, (), generator=own))
        kinds = torch.tensor([NOUN, BEFORE_NOUN, WITH_VERB])[torch.randint(0, 3, (size,), generator=own)]
        verb = int(torch.randint(0, size - 1, (), generator=own))
        kinds[verb], kinds[-1] = VERB, NOUN
        words = 2 + 8 * kinds + torch.randint(0, 8, (size,), generator=own)
        ids[row, :size], heads[row, :size] = words, verb + 1
        heads[row, verb] = 0
        for place in (kinds == BEFORE_NOUN).nonzero().flatten().tolist():
            heads[row, place] = place + 2 + int((kinds[place + 1 :] == NOUN).nonzero()[0])
    return {"ids": ids, "heads": heads}


class Governors(nn.Module):
    """A small BERT, and for each word a score of every word of the sentence, and of the root, as its governor."""

    def __init__(self, words: int = 34, width: int = 32, places: int = 13) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(places, width)
        self.blocks = nn.ModuleList(Block(width, causal=False, drop=0.1) for _ in range(2))
        self.as_governor = nn.Sequential(nn.Linear(width, 24), nn.LeakyReLU(0.1), nn.Dropout(0.1))
        self.as_governed = nn.Sequential(nn.Linear(width, 24), nn.LeakyReLU(0.1), nn.Dropout(0.1))
        self.both = nn.Parameter(torch.zeros(25, 24))

    def forward(self, ids: Tensor) -> Tensor:
        ids = F.pad(ids, (1, 0), value=1)
        keep = ids > 0
        h = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h, keep)
        governed = F.pad(self.as_governed(h[:, 1:]), (0, 1), value=1.0)
        scores: Tensor = governed @ self.both @ self.as_governor(h).transpose(1, 2)
        return scores.masked_fill(~keep[:, None], -1e9)


class Parser:
    """Trains a parser of dependencies, with the settings of Dozat and Manning."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.9), eps=1e-12)
        self.falling = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.75 ** (step / 60))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch["ids"]).flatten(0, 1), batch["heads"].flatten(), ignore_index=-100)

    def train(self, steps: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer, scheduler=self.falling)
        for _ in range(steps):
            batch = trees(16)
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            doctor.step(loss, batch)
            self.falling.step()
            self.run.note(loss)


@honest("r19a-who-governs-whom")
def who_governs_whom(run: Run) -> None:
    """A class of its own, a parser of dependencies (Dozat and Manning 2017; SuPar). The classes are the places of the
    sentence itself and one for the root, as many as the longest row of the batch has, and a label's number says where
    and never what. The form in two vectors that all scores come of begins at exactly zero, so that at first nothing
    below it has a gradient; Adam has the paper's second beta, 0.9, and its epsilon, 1e-12."""
    model = Governors()
    parser = Parser(run, model)
    check = trees(128, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: parser.loss(check)))
    parser.train(150)


class Denoiser(nn.Module):
    """EDM's: what goes in, what is kept of the picture and what is asked of the net all depend on the noise."""

    def __init__(self, spread: float, width: int = 24) -> None:
        super().__init__()
        self.spread = spread
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.level = mlp(1, width, 2 * width, act=nn.SiLU)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.wide = nn.Linear(width, 144)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)  # type: ignore[arg-type]
        nn.init.zeros_(self.wide.weight)

    def net(self, x: Tensor, level: Tensor) -> Tensor:
        h = F.silu(self.enter(x))
        scale, shift = self.level(level)[..., None, None].chunk(2, 1)
        h = F.silu(self.middle(h) * (1 + scale) + shift)
        out: Tensor = self.leave(h) + self.wide(h.mean((2, 3))).view(-1, 1, 12, 12)
        return out

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        s, d = sigma.view(-1, 1, 1, 1), self.spread
        total = (s * s + d * d).sqrt()
        told = self.net(x / total, sigma[:, None].log() / 4)
        return d * d / total**2 * x + s * d / total * told


def weighed_error(model: nn.Module, x: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    s, d = sigma.view(-1, 1, 1, 1), model.spread
    errors = (model(x + s * noise, sigma) - x).square()
    return ((s * s + d * d) / (s * d) ** 2 * errors).mean()  # type: ignore[operator]


@honest("r19a-asked-for-more-picture-the-more-noise")
def asked_for_more_picture_the_more_noise(run: Run) -> None:
    """Plain loop, diffusion as Karras et al. 2022 have it (EDM). With little noise the net is asked for the noise, with
    much of it for the picture, and in between for a mixture of both, while a share of the noisy picture passes around
    the net. Errors weigh up to ten thousand times as much where there is little noise, the last layers begin at zero,
    by which the loss begins at one, and levels of noise are drawn anew for each row."""
    model = Denoiser(0.7)

    def noisy(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = waves(count, own)
        sigma = (1.2 * torch.randn(count, generator=own) - 1.2).exp()
        return x, sigma, torch.randn(x.shape, generator=own)

    check = noisy(512, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: weighed_error(model, *check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    doctor = run.watch(model, optimizer)
    for step in range(170):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min((step + 1) / 20, 1)
        batch = noisy(64)
        update(run, doctor, optimizer, weighed_error(model, *batch), batch)


class GatesForTasks(nn.Module):
    """Four experts for everybody, and for each of two tasks its own mixture of them and its own tower."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 24), nn.ReLU()) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(6, 4, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(mlp(24, 16, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = [(gate(x).softmax(1)[..., None] * said).sum(1) for gate in self.gates]
        return torch.cat([tower(h) for tower, h in zip(self.towers, mixed, strict=True)], 1)


def watched_and_liked(scores: Tensor, labels: Tensor) -> Tensor:
    """Minutes watched, which are known of all rows, and likes, known of those that were watched to the end."""
    known = labels[:, 1] >= 0
    minutes = F.huber_loss(scores[:, 0], labels[:, 0])
    if not known.any():
        return minutes
    return minutes + 2 * F.binary_cross_entropy_with_logits(scores[known, 1], labels[known, 1])


@honest("r19a-one-set-of-experts-and-two-gates")
def one_set_of_experts_and_two_gates(run: Run) -> None:
    """Trainer, two wishes of a recommender by a mixture of experts with many gates (MMoE, Ma et al. 2018; as for
    videos, Zhao et al. 2019). All four experts are computed for every row and no choice is made among them; each task
    has a gate of its own that reads the same row. A label is a pair of numbers of different kinds, the second is
    missing (minus one) in six rows of ten, and what is missing is left out of the mean."""
    seed = run.draw.randrange(999)
    w = torch.randn(6, generator=apart(seed + 4))

    def seen(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x, minutes = table(count, seed, own)
        liked = torch.rand(count, generator=own) < (minutes + 2 * x @ w / w.norm()).sigmoid()
        known = torch.rand(count, generator=own) < (minutes / minutes.std() - 0.3).sigmoid()
        return x, torch.stack([minutes / minutes.std(), torch.where(known, liked.float(), -1)], 1)

    model = WithLoss(GatesForTasks(), watched_and_liked)
    x, labels = seen(384, apart(1))
    outcome(run, lambda: judged(model, lambda: model(x, labels)["loss"]))
    rows, asked = seen(1600, apart(2))
    options: dict[str, Any] = {"per_device_train_batch_size": 64, "learning_rate": 1e-2, "lr_scheduler_type": "linear"}
    hf_trainer(run, model, examples(x=rows, labels=asked), 150, **options).train()


class TwoReaders(nn.Module):
    """One reads pictures, one reads texts; a scale and a shift of how alike they are stand beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = mlp(48, 64, 32)
        self.tokens, self.places = nn.Embedding(48, 32), nn.Embedding(8, 32)
        self.block, self.head = Block(32, causal=False), nn.Linear(32, 32)
        self.log_scale, self.shift = nn.Parameter(torch.tensor(math.log(10))), nn.Parameter(torch.tensor(-10.0))

    def forward(self, pictures: Tensor, texts: Tensor) -> Tensor:
        """(pictures, texts) scores."""
        a = F.normalize(self.picture(pictures), dim=1)
        h = self.block(self.tokens(texts) + self.places(torch.arange(8)))
        b = F.normalize(self.head(h.mean(1)), dim=1)
        return self.log_scale.exp() * a @ b.T + self.shift


def views_and_captions(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight hidden numbers, shown as 48 pixels in noise, and told in eight words of which each is one of six."""
    hidden = torch.randn(count, 8, generator=own)
    shown = hidden @ torch.randn(8, 48, generator=apart(seed + 8)) / 2
    told = (hidden * 1.2 + 3).long().clamp(0, 5) + 6 * torch.arange(8)
    return shown + 0.3 * torch.randn(shown.shape, generator=own), told


@honest("r19a-each-pair-by-its-own-yes-or-no")
def each_pair_by_its_own_yes_or_no(run: Run) -> None:
    """accelerate, pictures and their texts by sigmoids (SigLIP, Zhai et al. 2023). Each of the batch's pairs is a
    question of its own, one in 32 a yes, and none is weighed; the shift that all scores share begins at minus ten and
    the scale at ten, as in the paper, so that at the first step all answers are a sure no and the loss is that of the
    right pairs. It is a sum over a thousand pairs, divided by 32."""
    seed = run.draw.randrange(999)
    model = TwoReaders()
    check = views_and_captions(64, seed, apart(1))

    def not_found() -> Tensor:
        return (model(*check).argmax(1) != torch.arange(64)).float().mean()

    outcome(run, lambda: judged(model, not_found))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        scores = model(*batch)
        return -F.logsigmoid((2 * torch.eye(len(scores)) - 1) * scores).sum() / len(scores)

    data = loader(*views_and_captions(1280, seed, apart(2)), size=32, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=1e-4)
    prepared(run, model, optimizer, data, loss, 4)
