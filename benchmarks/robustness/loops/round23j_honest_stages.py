"""Round 23j, honest and odd: stages, resumes, what is frozen and thawed, and what is merged."""

import copy
import io
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Patches, spots
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from benchmarks.robustness.loops.round23j_honest_players import energy_distance, glows
from torch import Tensor, nn
from torch.nn import functional as F


class Feeling(nn.Module):
    """Words through two LSTMs, and a class from the last state."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(24, 16)
        self.first, self.second = nn.LSTM(16, 24, batch_first=True), nn.LSTM(24, 24, batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.first(self.words(ids))[0])[0][:, -1])
        return out


@honest("r23j-each-layer-thawed-alone")
def each_layer_thawed_alone(run: Run) -> None:
    """Plain loop, LSTMs tuned by chain-thaw (DeepMoji, Felbo et al. 2017). One optimizer holds all weights; first the
    new head has a gradient, then the vectors of words alone, then one LSTM alone, then the other, and at the end all.
    In any step but the last ones three quarters of the model have none, and which quarter learns changes four times."""
    own = apart(run.draw.randrange(999))
    mood, topic = torch.randint(0, 3, (24,), generator=own), torch.randn(24, 6, generator=own)

    def many(count: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 24, (count, 8))
        return ids, topic[ids].sum(1).argmax(1)

    def few(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 24, (count, 8), generator=generator)
        return ids, F.one_hot(mood[ids], 3).sum(1).float().add(torch.tensor([0.2, 0.1, 0.0])).argmax(1)

    model = Feeling(6)
    taught(model, lambda: many(48), classify, 120, 1e-2)
    model.head = nn.Linear(24, 3)
    x, y = few(320, own)
    check = few(300, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for part in (model.head, model.words, model.first, model.second, model):
        model.requires_grad_(False)
        part.requires_grad_(True)
        for _ in range(28):
            rows = torch.randint(0, 320, (32,))
            update(run, doctor, optimizer, classify(model, (x[rows], y[rows])), (x[rows], y[rows]))


def halves(layer: nn.Linear, rank: int) -> nn.Sequential:
    """Two thin layers whose product is nearest to a layer's matrix."""
    u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    thin = nn.Sequential(nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features))
    root = s[:rank].sqrt()
    with torch.no_grad():
        thin[0].weight.copy_(root[:, None] * v[:rank])
        thin[1].weight.copy_(u[:, :rank] * root)
        thin[1].bias.copy_(layer.bias)
    return thin


@honest("r23j-full-first-and-then-two-thin-ones")
def full_first_and_then_two_thin_ones(run: Run) -> None:
    """Plain loop, a vision transformer that begins with full matrices and goes on with factors of rank eight
    (Pufferfish, Wang et al. 2021). After seventy steps the large layers are replaced by two from their singular
    values: half of their parameters are gone, the loss jumps, and the optimizer begins anew without its moments."""
    model = Patches(4)
    check = spots(256, 4, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    for stage in range(2):
        if stage:
            attention, feed = model.block.attention, model.block.feed
            attention.qkv, attention.out = halves(attention.qkv, 8), halves(attention.out, 8)
            feed[0], feed[2] = halves(feed[0], 8), halves(feed[2], 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        doctor = run.watch(model, optimizer)
        for _ in range((70, 120)[stage]):
            batch = spots(64, 4)
            update(run, doctor, optimizer, classify(model, batch), batch)


def kept(t: Tensor) -> Tensor:
    return (0.5 * math.pi * t).cos()[:, None]


def lost(t: Tensor) -> Tensor:
    return (0.5 * math.pi * t).sin()[:, None]


class Inner(nn.Module):
    """What noise is in a latent vector, given how much."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4 + 8, 64, 64, 4, act=nn.SiLU)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        waves = t[:, None] * 2.0 ** torch.arange(4) * math.pi
        out: Tensor = self.net(torch.cat([z, waves.sin(), waves.cos()], 1))
        return out


@honest("r23j-pressed-together-and-then-noised")
def pressed_together_and_then_noised(run: Run) -> None:
    """Lightning twice, latent diffusion (Rombach et al. 2022). First an autoencoder of pictures whose latents are
    hardly held to any density; then it is frozen, its latents are divided by their spread, measured once on the first
    batch, and a small network learns the noise in them. The second loss begins near one and cannot come near zero."""
    encoder = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(192, 8))
    decoder = nn.Sequential(mlp(4, 64, 64, act=nn.SiLU), nn.Unflatten(1, (1, 8, 8)))
    inner, spread = Inner(), torch.ones(())
    real = glows(300, apart(1))

    @torch.no_grad()
    def drawn(count: int) -> Tensor:
        z = torch.randn(count, 4, generator=apart(2))
        times = torch.linspace(0.98, 0.0, 25)
        for now, then in zip(times[:-1].expand(count, -1).T, times[1:].expand(count, -1).T, strict=True):
            noise = inner(z, now)
            z = kept(then) * (z - lost(now) * noise) / kept(now) + lost(then) * noise
        return decoder(z * spread)

    outcome(run, lambda: judged(decoder, lambda: energy_distance(drawn(300), real)))

    def rebuilt(net: Any, batch: Any) -> Tensor:
        mean, log = encoder(batch[0]).chunk(2, 1)
        z = mean + log.mul(0.5).exp() * torch.randn_like(mean)
        divergence = 0.5 * (mean.square() + log.exp() - 1 - log).sum(1).mean()
        return F.mse_loss(decoder(z), batch[0], reduction="sum") / len(z) + 1e-3 * divergence

    def denoised(net: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            mean, log = encoder(batch[0]).chunk(2, 1)
            z = mean + log.mul(0.5).exp() * torch.randn_like(mean)
            if bool(spread == 1):
                spread.copy_(z.std())
        t, noise = torch.rand(len(z)), torch.randn_like(z)
        return F.mse_loss(inner(kept(t) * z / spread + lost(t) * noise, t), noise)

    rows = glows(960, apart(run.draw.randrange(999)))
    both = nn.ModuleList([encoder, decoder])
    fit(run, lit(both, rebuilt, lambda net: adam(net)), loader(rows, size=32), 90)
    both.requires_grad_(False)
    everything = nn.ModuleDict({"first": both.eval(), "inner": inner})
    fit(run, lit(everything, denoised, lambda net: adam(inner)), loader(rows, size=64), 110)


def rows_of(words: Tensor, count: int, own: torch.Generator) -> Examples:
    """Rows of eight words whose class is that of their groups' majority; the words come from those given."""
    y = torch.randint(0, 3, (count,), generator=own)
    group = torch.where(
        torch.rand(count, 8, generator=own) < 0.6, y[:, None], torch.randint(0, 3, (count, 8), generator=own)
    )
    ids = words[group, torch.randint(0, words.shape[1], (count, 8), generator=own)]
    return Examples([{"input_ids": a, "labels": b} for a, b in zip(ids, y, strict=True)])


@honest("r23j-merged-where-each-is-sure")
def merged_where_each_is_sure(run: Run) -> None:
    """transformers' Trainer twice, BERT. Two copies of one checkpoint are tuned apart, each on words that the other
    never sees, and what is kept is a mean of both in which each weight counts as much as its Fisher information
    (Matena and Raffel 2022). Neither run is the result, and rows of the vocabulary have no gradient in each."""
    own = apart(run.draw.randrange(999))
    words = torch.randperm(24, generator=own).view(3, 8) + 4
    base = tiny_bert(vocab_size=28)
    merged = copy.deepcopy(base)
    check = rows_of(words, 300, apart(1)).rows
    ids, y = (torch.stack([row[k] for row in check]) for k in ("input_ids", "labels"))
    outcome(run, lambda: judged(merged, lambda: F.cross_entropy(merged(input_ids=ids).logits, y)))
    models, sure = [], []
    for part in (words[:, :4], words[:, 4:]):
        model, data = copy.deepcopy(base), rows_of(part, 320, own)
        hf_trainer(run, model, data, 80, learning_rate=3e-3, lr_scheduler_type="constant").train()
        squares = {name: torch.full_like(p, 1e-6) for name, p in model.named_parameters()}
        for row in data.rows[:60]:
            scores = model.eval()(input_ids=row["input_ids"][None]).logits
            guess = torch.multinomial(scores.detach().softmax(1), 1).squeeze(1)
            named = dict(model.named_parameters())
            slopes = torch.autograd.grad(F.cross_entropy(scores, guess), list(named.values()), allow_unused=True)
            for name, slope in zip(named, slopes, strict=True):
                if slope is not None:
                    squares[name] += slope.square()
        models.append(dict(model.named_parameters()))
        sure.append(squares)
    with torch.no_grad():
        for name, p in merged.named_parameters():
            p.copy_(sum(s[name] * m[name] for s, m in zip(sure, models, strict=True)) / (sure[0][name] + sure[1][name]))


@honest("r23j-spans-first-and-then-what-follows")
def spans_first_and_then_what_follows(run: Run) -> None:
    """Plain loop, T5 adapted to language modelling (Lester et al. 2021). It learns to fill spans behind sentinels, and
    then, in the same loop with the same moments of Adafactor and at the same rate, to go on from a prefix. At the
    change the loss is that of an untrained model again; the rows of the sentinels have no gradient from there on."""
    from transformers import T5Config, T5ForConditionalGeneration

    language = Language(run.draw.randrange(999), first=4)
    config = T5Config(vocab_size=20, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0)
    config.decoder_start_token_id = config.pad_token_id = 0
    model = T5ForConditionalGeneration(config)

    def spans(rows: Tensor) -> tuple[Tensor, Tensor]:
        """Two spans of two words, each a sentinel in the text, and told behind it."""
        count = len(rows)
        sentinels = torch.tensor([16, 17]).expand(count, -1)
        text = [rows[:, :3], sentinels[:, :1], rows[:, 5:9], sentinels[:, 1:], rows[:, 11:]]
        return torch.cat(text, 1), torch.cat([sentinels[:, :1], rows[:, 3:5], sentinels[:, 1:], rows[:, 9:11]], 1)

    check = language.rows(128, 16, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[:, :6], labels=check[:, 6:].contiguous()).loss))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=3e-2)
    doctor = run.watch(model, optimizer)
    for step in range(140):
        rows = language.rows(32, 16)
        inputs, labels = spans(rows) if step < 70 else (rows[:, :6], rows[:, 6:].contiguous())
        update(run, doctor, optimizer, model(input_ids=inputs, labels=labels).loss, (inputs, labels))


class Molecules(nn.Module):
    """Three rounds of sums over neighbours (GIN), a kind for each atom, a class for the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(6, 24)
        self.rounds = nn.ModuleList(mlp(24, 24, 24) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(3))
        self.atom, self.whole = nn.Linear(24, 5), nn.Linear(24, 2)

    def forward(self, kinds: Tensor, bonds: Tensor) -> Tensor:
        h = self.kinds(kinds)
        for layer, norm in zip(self.rounds, self.norms, strict=True):
            h = h + layer(norm(h + bonds @ h))
        return h


@honest("r23j-atoms-guessed-before-the-molecule")
def atoms_guessed_before_the_molecule(run: Run) -> None:
    """Plain loop, a network of graphs first guesses hidden atoms of many molecules, then a property of a few (Hu et al.
    2020). In the first stage the head of the whole has no gradient, in the second the head of atoms and the vector of
    a hidden atom have none; the rate of the body falls to a fifth of the new head's."""
    own = apart(run.draw.randrange(999))
    follows = 2 * torch.randn(5, 5, generator=own)

    def drawn(count: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Chains of nine atoms with one bond across; have atoms of kind 0 more bonds than those of kind 2?"""
        kinds = torch.randint(0, 5, (count, 9), generator=generator)
        for t in range(1, 9):
            kinds[:, t] = torch.multinomial(follows[kinds[:, t - 1]].softmax(1), 1, generator=generator).squeeze(1)
        bonds = torch.diag_embed(torch.ones(8), 1).expand(count, -1, -1).clone()
        bonds[torch.arange(count), 0, torch.randint(2, 9, (count,), generator=generator)] = 1.0
        bonds = bonds + bonds.transpose(1, 2)
        one = F.one_hot(kinds, 5).float()
        met = one.transpose(1, 2) @ bonds @ one
        return kinds, bonds, (met[:, 0].sum(1) > met[:, 2].sum(1)).long()

    model = Molecules()
    *graphs, y = drawn(300, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model.whole(model(*graphs).mean(1)), y)))
    optimizer = torch.optim.Adam(
        [
            {"params": [p for n, p in model.named_parameters() if "whole" not in n]},
            {"params": model.whole.parameters()},
        ],
        lr=5e-3,
    )
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        kinds, bonds, _ = drawn(32)
        hidden = torch.rand(kinds.shape) < 0.2
        guess = model.atom(model(kinds.masked_fill(hidden, 5), bonds)[hidden])
        update(run, doctor, optimizer, F.cross_entropy(guess, kinds[hidden]), (kinds, bonds, hidden))
    optimizer.param_groups[0]["lr"] = 1e-3
    few = drawn(160, own)
    for _ in range(80):
        rows = torch.randint(0, 160, (32,))
        kinds, bonds, labels = (t[rows] for t in few)
        update(
            run,
            doctor,
            optimizer,
            F.cross_entropy(model.whole(model(kinds, bonds).mean(1)), labels),
            (kinds, bonds, labels),
        )


class Slow(nn.Module):
    """A language model by diagonal states that decay, each at its own pace."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.tokens, self.enter, self.gate = nn.Embedding(words, 24), nn.Linear(24, 32), nn.Linear(24, 32)
        self.pace = nn.Parameter(torch.linspace(-2.0, 3.0, 32))
        self.head = nn.Sequential(nn.LayerNorm(32), mlp(32, 48, words))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        put, gate, keep = self.enter(x), self.gate(x), self.pace.sigmoid()
        state, states = torch.zeros_like(put[:, 0]), []
        for t in range(ids.shape[1]):
            state = keep * state + (1 - keep) * put[:, t]
            states.append(state)
        out: Tensor = self.head(torch.stack(states, 1) * F.silu(gate))
        return out


class Elastic:
    """Training on as many machines as there are: each computes its share of a batch, in pieces of eight rows."""

    def __init__(self, run: Run, rows: Tensor, machines: int, saved: bytes | None = None) -> None:
        self.run, self.rows, self.machines = run, rows, machines
        self.model = Slow(12)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=10)
        self.done = 0
        if saved:
            state = torch.load(io.BytesIO(saved))
            self.done = state.pop("done")
            for name, part in state.items():
                getattr(self, name).load_state_dict(part)

    def saved(self) -> bytes:
        file = io.BytesIO()
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}
        torch.save(parts | {"done": self.done}, file)
        return file.getvalue()

    def train(self, until: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        pieces_each = 4 // self.machines
        while self.done < until:
            epoch, place = divmod(self.done, len(self.rows) // 32)
            order = torch.randperm(len(self.rows), generator=apart(epoch))
            pieces = self.rows[order[32 * place : 32 * place + 32]].view(self.machines, pieces_each, 8, -1)
            self.optimizer.zero_grad()
            total = torch.zeros(())
            for machine in pieces:
                for piece in machine:
                    loss = next_loss(self.model, piece) / pieces_each / self.machines
                    loss.backward()
                    total += loss.detach()
            self.optimizer.step()
            self.schedule.step()
            self.done += 1
            doctor.step(total, pieces)
            self.run.note(total)


@honest("r23j-resumed-with-half-of-the-machines")
def resumed_with_half_of_the_machines(run: Run) -> None:
    """An own class, a state-space model in an elastic job (torchrun's elastic launch, TorchElastic). It begins on four
    machines; at step forty-five two are lost, at step seventy another, and each time all is built anew from the saved
    state and goes on in the middle of the epoch, with twice as many pieces to a machine so that the batch stays."""
    language = Language(run.draw.randrange(999))
    job = Elastic(run, language.rows(640, 16, apart(run.draw.randrange(999))), 4)
    final = Slow(12)
    final.load_state_dict(job.model.state_dict())
    language_outcome(run, final, language, 16)
    for machines, until in ((4, 45), (2, 70), (1, 110)):
        job = Elastic(run, job.rows, machines, job.saved())
        job.train(until)
    final.load_state_dict(job.model.state_dict())
