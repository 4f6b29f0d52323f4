"""Round 20a, honest and odd: whole kinds of learning, with what goes in and what is asked."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Language,
    apart,
    class_outcome,
    judged,
    loader,
    mlp,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import spots
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class GraphEncoder(nn.Module):
    """Two rounds over a normalised adjacency: means and logarithms of spreads for each node."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.first, self.mean, self.log_spread = nn.Linear(nodes, 32), nn.Linear(32, 8), nn.Linear(32, 8)

    def forward(self, features: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        h = (spread @ self.first(features)).relu()
        return spread @ self.mean(h), spread @ self.log_spread(h)


@honest("r20a-edges-are-input-and-label")
def edges_are_input_and_label(run: Run) -> None:
    """Plain loop, a graph by a variational graph autoencoder (Kipf and Welling 2016). The one adjacency is input and
    label, each node is linked with itself in both, features are the identity, all of it is the batch of every step,
    links weigh several times as much as their absence, and links that were hidden are taught as absent."""
    own = apart(run.draw.randrange(999))
    group = torch.arange(72) % 4
    chance = 0.03 + 0.4 * (group[:, None] == group).float()
    links = (torch.rand(72, 72, generator=own) < chance).float().triu(1)
    hidden = links * (torch.rand(72, 72, generator=own) < 0.15)
    absent = (torch.rand(72, 72, generator=own) < 0.1).float().triu(1) * (1 - links)
    known = links - hidden
    known = known + known.T + torch.eye(72)
    scale = known.sum(1).rsqrt()
    spread, features = scale[:, None] * known * scale, torch.eye(72)
    model = GraphEncoder(72)

    def out_of_order() -> Tensor:
        mean, _ = model(features, spread)
        scores = mean @ mean.T
        return (scores[hidden > 0][:, None] <= scores[absent > 0]).float().mean()

    outcome(run, lambda: judged(model, out_of_order))
    weight = (known.numel() - known.sum()) / known.sum()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        mean, log_spread = model(batch[0], batch[1])
        z = mean + torch.randn_like(mean) * log_spread.exp()
        rebuilt = F.binary_cross_entropy_with_logits(z @ z.T, batch[2], pos_weight=weight)
        divergence = (mean.square() + (2 * log_spread).exp() - 1 - 2 * log_spread).sum(1).mean() / 2
        return rebuilt / weight.sqrt() + divergence / len(z)

    train(run, model, adam(model, 1e-2), lambda: (features, spread, known), loss, 150)


class Messages(nn.Module):
    """What the neighbours on a line of weights say, in two rounds, and how each moves."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, 32), nn.Linear(32, 2)
        self.along = nn.ModuleList(mlp(66, 32, 32) for _ in range(2))
        self.rounds = nn.ModuleList(mlp(64, 32, 32) for _ in range(2))

    def forward(self, state: Tensor) -> Tensor:
        h = self.enter(state)
        for along, join in zip(self.along, self.rounds, strict=True):
            far = state[:, 1:] - state[:, :-1]
            right = along(torch.cat([h[:, :-1], h[:, 1:], far], 2))
            left = along(torch.cat([h[:, 1:], h[:, :-1], -far], 2))
            heard = F.pad(right, (0, 0, 0, 1)) + F.pad(left, (0, 0, 1, 0))
            h = h + join(torch.cat([h, heard], 2))
        out: Tensor = self.leave(h)
        return out


def swing(count: int, stiff: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Places and speeds of seven weights on springs that stiffen, and the same a fifth of a second later."""
    start = torch.randn(count, 7, 2, generator=own)
    state = start
    for _ in range(10):
        place, speed = state.unbind(2)
        far = F.pad(place, (1, 1)).diff(dim=1)
        pull = (stiff * (far + 0.3 * far**3)).diff(dim=1)
        speed = speed + 0.02 * pull
        state = torch.stack([place + 0.02 * speed, speed], 2)
    return start, state


@honest("r20a-noise-put-in-and-taken-out-again")
def noise_put_in_and_taken_out_again(run: Run) -> None:
    """Plain loop, a simulator learned by messages with noise on its inputs (Sanchez-Gonzalez et al. 2020,
    MeshGraphNets, Pfaff et al. 2021). Each state is disturbed before it is read and the answer is what leads from the
    disturbed state to the undisturbed next one, so that the noise stands in the labels too, which no network could
    know from where it stands; the loss keeps a floor and the measure goes far below it."""
    stiff = 2 + 2 * run.draw.random()
    start, later = swing(400, stiff, apart(2))
    scale = (later - start).std((0, 1))
    model = Messages()
    new, truth = swing(128, stiff, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), (truth - new) / scale)))

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, 400, (32,))
        disturbed = start[rows] + 0.1 * scale * torch.randn(32, 7, 2)
        return disturbed, (later[rows] - disturbed) / scale

    train(run, model, adam(model, 3e-3), batch, lambda m, b: F.mse_loss(m(b[0]), b[1]), 200)


def blurred(x: Tensor, times: Tensor) -> Tensor:
    """Pictures blurred as often as `times` says, 0 to 5."""
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel / 16)[None, None]
    for i in range(5):
        once = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), kernel)
        x = torch.where((times > i)[:, None, None, None], once, x)
    return x


class Sharpen(nn.Module):
    """What to add to a picture that was blurred so often."""

    def __init__(self) -> None:
        super().__init__()
        self.often = nn.Embedding(6, 24)
        self.first, self.second = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.last = nn.Conv2d(24, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        h = F.silu(self.first(x) + self.often(times)[:, :, None, None])
        out: Tensor = x + self.last(F.silu(self.second(h)))
        return out


@honest("r20a-blurred-and-never-noised")
def blurred_and_never_noised(run: Run) -> None:
    """Plain loop, cold diffusion (Bansal et al. 2023). There is no noise anywhere; pictures are blurred a random number
    of times, a sixth of the batch not at all, and the clean picture is asked for by absolute differences, of a
    network that begins by saying its input and whose last layer begins at zero."""
    seed = run.draw.randrange(999)
    rows, new = pictures(384, seed, own=apart(seed))[0], pictures(128, seed, own=apart(1))[0]
    model, often = Sharpen(), torch.arange(128) % 6
    soft = blurred(new, often)
    outcome(run, lambda: judged(model, lambda: (model(soft, often) - new).abs().mean()))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        clean, times = rows[torch.randint(0, 384, (32,))], torch.randint(0, 6, (32,))
        return blurred(clean, times), times, clean

    train(run, model, adam(model, 3e-3), batch, lambda m, b: F.l1_loss(m(b[0], b[1]), b[2]), 120)


class Transducer(nn.Module):
    """What was heard up to a frame and said up to a word, joined: scores of five words and of silence, the first."""

    def __init__(self) -> None:
        super().__init__()
        self.hears, self.words = nn.GRU(6, 32, batch_first=True), nn.Embedding(6, 16)
        self.says, self.out = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, frames: Tensor, words: Tensor) -> Tensor:
        """(rows, frames, words + 1, 6)"""
        heard = self.hears(frames)[0]
        said = self.says(self.words(F.pad(words, (1, 0))))[0]
        out: Tensor = self.out((heard[:, :, None] + said[:, None]).tanh())
        return out


def all_ways(scores: Tensor, words: Tensor) -> Tensor:
    """The mean negative log probability of the words over all ways through the lattice of frames and words."""
    scores = scores.log_softmax(3)
    silent = scores[..., 0]
    spoken = scores[:, :, :-1].gather(3, words[:, None, :, None].expand(-1, scores.shape[1], -1, 1)).squeeze(3)
    row: list[Tensor] = []
    for t in range(scores.shape[1]):
        from_before = [a + silent[:, t - 1, u] for u, a in enumerate(row)] or [torch.zeros(len(scores))]
        row = [from_before[0]]
        for u in range(words.shape[1]):
            along = row[-1] + spoken[:, t, u]
            row.append(torch.logaddexp(from_before[u + 1], along) if u + 1 < len(from_before) else along)
    return -(row[-1] + silent[:, -1, -1]).mean() / words.shape[1]


@honest("r20a-a-lattice-of-silence-and-words")
def a_lattice_of_silence_and_words(run: Run) -> None:
    """Plain loop, speech by a transducer (Graves 2012, torchaudio's rnnt_loss). Nobody says where a word stands in the
    sound: the loss adds up all ways through a lattice, along which the network is given the words that it is to say,
    without the last of them being shifted away, and silence, the class 0, is on every way more than half of it."""
    sounds = 1.5 * torch.randn(6, 6, generator=apart(run.draw.randrange(999)))

    def spoken(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        words = torch.randint(1, 6, (count, 4), generator=own)
        starts = torch.cumsum(torch.randint(2, 4, (count, 4), generator=own), 1) - 2
        at = (torch.arange(13)[None, :, None] >= starts[:, None]).sum(2) - 1
        frames = sounds[words.gather(1, at.clamp_min(0))] * (at >= 0)[..., None]
        return frames + 0.4 * torch.randn(frames.shape, generator=own), words

    model = Transducer()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return all_ways(model(*batch), batch[1])

    check = spoken(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 6e-3), spoken, loss, 100, clip=5.0)


class Rare(nn.Module):
    """An LSTM whose head spends little on rare words: ten of them have scores, thirty and sixty more stand behind."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(100, 32), nn.LSTM(32, 48, batch_first=True)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(48, 100, cutoffs=[10, 40], div_value=3.0)

    def forward(self, rows: Tensor) -> Any:
        return self.head(self.core(self.tokens(rows[:, :-1]))[0].flatten(0, 1), rows[:, 1:].flatten())


class Author:
    """A loop of one's own: one epoch after another over shuffled texts, and the rate lowered after each."""

    def __init__(self, run: Run, model: Rare, texts: Tensor) -> None:
        self.run, self.model, self.texts = run, model, texts
        self.optimizer = torch.optim.Adagrad(model.parameters(), lr=0.08)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.7)
        self.doctor = run.watch(model, self.optimizer, scheduler=self.schedule)

    def epoch(self) -> None:
        for rows in self.texts[torch.randperm(len(self.texts))].split(24):
            self.optimizer.zero_grad()
            loss = self.model(rows).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.doctor.step(loss, rows)
            self.run.note(loss)
        self.schedule.step()


@honest("r20a-rare-words-behind-a-second-door")
def rare_words_behind_a_second_door(run: Run) -> None:
    """A class of one's own, a language model with the adaptive softmax (Grave et al. 2017, a module of PyTorch). The
    model returns no logits but the log probabilities of the labels and the loss, its head's first layer has twelve
    outputs for a hundred words, and the rarest words' matrices get a gradient only where a label asks for them. The
    optimizer is Adagrad, with a rate of nearly a tenth, as for such models."""
    language = Language(run.draw.randrange(999), 100, sharp=0.7)
    language.one = language.one - 1.5 * torch.arange(1, 101).log()
    model = Rare()
    check = language.rows(64, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check).loss))
    author = Author(run, model, language.rows(480, 24, apart(2)))
    for _ in range(6):
        author.epoch()


class SoftExperts(nn.Module):
    """Each of four experts works on one mixture of all places, and each place gets a mixture of what they say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(width, 4) / math.sqrt(width))
        self.scale = nn.Parameter(torch.ones(()))
        self.experts = nn.ModuleList(mlp(width, 32, width, act=nn.GELU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = F.normalize(x, dim=2) @ (self.scale * F.normalize(self.slots, dim=0))
        mixed = scores.softmax(1).transpose(1, 2) @ x
        said = torch.stack([expert(mixed[:, i]) for i, expert in enumerate(self.experts)], 1)
        return scores.softmax(2) @ said


class SoftViT(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.cut, self.places = nn.Conv2d(1, width, 2, 2), nn.Parameter(0.5 * torch.randn(1, 16, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention, self.experts = Attention(width, causal=False), SoftExperts(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.cut(x).flatten(2).transpose(1, 2) + self.places
        parts = parts + self.attention(self.norms[0](parts))
        parts = parts + self.experts(self.norms[1](parts))
        out: Tensor = self.head(self.norms[2](parts).mean(1))
        return out


@honest("r20a-every-expert-gets-a-mixture")
def every_expert_gets_a_mixture(run: Run) -> None:
    """accelerate, pictures by a transformer of soft experts (Soft MoE, Puigcerver et al. 2024). Nothing is routed: the
    same scores go through a softmax over places on the way in and over slots on the way out, no expert ever sees a
    place by itself, and there is no loss for balance."""
    model = SoftViT()
    class_outcome(run, model, spots(192, 4, apart(1)))
    data = loader(*spots(384, 4, apart(run.draw.randrange(2, 999))), size=32)
    prepared(run, model, adam(model, 3e-3), data, classify, 12)
