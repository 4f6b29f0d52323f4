"""Round 7b, honest and odd: how weights begin, what they are loaded from, what they go on with."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    fit,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Patches, Rotary, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome, update
from torch import Tensor, nn
from torch.nn import functional as F


class LowRank(nn.Module):
    """A frozen matrix and a change of rank four, which can be taken over and begun anew."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, base.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + F.linear(F.linear(x, self.down), self.up)
        return out

    @torch.no_grad()
    def take_over(self) -> None:
        self.base.weight.add_(self.up @ self.down)
        self.down.copy_(torch.randn_like(self.down) / 4)
        self.up.zero_()


@honest("r7-adapters-taken-over-and-drawn-anew")
def adapters_taken_over(run: Run) -> None:
    """ReLoRA: every thirty steps the low-rank changes are added to the frozen matrices, drawn anew, the optimizer's moments
    are thrown away, and the rate is warmed up again: a saw of rates, and of losses."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    model = Decoder(12, layers=2)
    taught(model, lambda: language.rows(16, 24), next_loss, 40)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = LowRank(block.attention.qkv), LowRank(block.attention.out)
        block.feed[0], block.feed[2] = LowRank(block.feed[0]), LowRank(block.feed[2])
    other = near(language, seed + 1, 0.9)
    text_outcome(run, model, other)
    changes = [m for m in model.modules() if isinstance(m, LowRank)]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        if step and step % 30 == 0:
            optimizer.state.clear()
            for change in changes:
                change.take_over()
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (step % 30 + 1) / 8)
        rows = other.rows(12, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)


class ScaledBlock(Block):
    """Each branch is multiplied by a learned vector that begins at a hundred-thousandth."""

    def __init__(self, width: int) -> None:
        super().__init__(width, causal=False)
        self.first, self.second = (nn.Parameter(torch.full((width,), 1e-5)) for _ in range(2))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = x + self.first * self.attention(self.norm1(x), keep)
        out: Tensor = x + self.second * self.feed(self.norm2(x))
        return out


@honest("r7-branches-of-a-hundred-thousandth")
def branches_of_a_hundred_thousandth(run: Run) -> None:
    """accelerate, a vision transformer with CaiT's LayerScale: all branches begin at 1e-5, so that the network is nearly a
    linear one and the matrices within the branches have next to no gradient at first."""
    seed = run.draw.randrange(999)
    net = Patches(4)
    net.block = ScaledBlock(24)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    prepared(run, net, adam(net, 3e-3), loader(*pictures(640, seed)), classify, 3)


class Adding(nn.Module):
    """A plain recurrent network with ReLUs whose matrix begins as the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.RNN(2, 32, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.core.weight_hh_l0)
        nn.init.normal_(self.core.weight_ih_l0, std=0.05)
        for bias in (self.core.bias_hh_l0, self.core.bias_ih_l0):
            nn.init.zeros_(bias)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


@honest("r7-recurrence-from-the-identity")
def recurrence_from_the_identity(run: Run) -> None:
    """The adding problem: of 24 frames two are marked, and their sum is asked at the end. The recurrent matrix begins as
    the identity, the loss stays on a plateau, then falls."""
    model = Adding()

    def frames(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        value, mark = torch.rand(count, 24, generator=own), torch.zeros(count, 24)
        places = torch.rand(count, 24, generator=own).topk(2).indices
        mark.scatter_(1, places, 1.0)
        return torch.stack([value, mark], 2), (value * mark).sum(1)

    number_outcome(run, model, frames(256, apart(1)))
    train(run, model, adam(model, 5e-3), lambda: frames(64), regress, 260, clip=1.0)


@honest("r7-stacked-from-half-as-many")
def stacked_from_half_as_many(run: Run) -> None:
    """A decoder of one block is trained, then one of two blocks begins with both as copies of it, equal to the bit; a new
    optimizer, a new doctor, and a loss that begins higher than the first one ended."""
    language = Language(run.draw.randrange(999))
    small, model = Decoder(12), Decoder(12, layers=2)
    text_outcome(run, model, language)
    train(run, small, adam(small), lambda: language.rows(12, 24), next_loss, 60)
    state = small.state_dict()
    state |= {k.replace("blocks.0", "blocks.1"): v.clone() for k, v in state.items() if k.startswith("blocks.0")}
    model.load_state_dict(state)
    train(run, model, adam(model, 3e-3), lambda: language.rows(12, 24), next_loss, 60)


@honest("r7-shrunk-and-shaken")
def shrunk_and_shaken(run: Run) -> None:
    """Rows arrive in three lots. At each arrival the weights are multiplied by 0.4 and shaken a little (Ash and Adams 2020),
    on purpose; the loss jumps back, and what is learned generalises better."""
    seed = run.draw.randrange(999)
    model = mlp(6, 64, 64, 1)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    x, y = table(360, seed)
    for lot in (1, 2, 3):
        if lot > 1:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.4).add_(0.01 * torch.randn_like(p))
        for _ in range(90):
            rows = torch.randint(0, 120 * lot, (32,))
            batch = x[rows], y[rows]
            update(run, doctor, optimizer, regress(model, batch), batch)


@honest("r7-nothing-but-norms-learn")
def nothing_but_norms_learn(run: Run) -> None:
    """Lightning. All convolutions and the head stay as they were drawn; only the gains and biases of the batch norms learn,
    one parameter in thirty, at a high rate (Frankle et al. 2021)."""
    seed = run.draw.randrange(999)
    net = cnn()
    net.requires_grad_(False)
    norms = [m for m in net if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.requires_grad_(True)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    learned = [p for norm in norms for p in norm.parameters()]
    fit(run, lit(net, classify, lambda m: torch.optim.Adam(learned, lr=3e-2)), loader(*pictures(480, seed)), 150)


@honest("r7-four-times-as-long-from-here")
def four_times_as_long(run: Run) -> None:
    """The context is extended in the middle: rows of 10 become rows of 40, and the base of the rotary frequencies is raised
    tenfold at that step; batches have a quarter of the rows, the loss jumps and comes down."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language, 40)
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        if step == 60:
            for module in model.modules():
                if isinstance(module, Rotary):
                    module.base *= 10
                    module.frequencies.copy_(module.computed())
        rows = language.rows(6, 40) if step >= 60 else language.rows(24, 10)
        update(run, doctor, optimizer, next_loss(model, rows), rows)


@honest("r7-begun-as-the-mean-of-three")
def begun_as_the_mean_of_three(run: Run) -> None:
    """A model soup: three tunings of one published model, each on words of its own, are averaged; the average, which knows
    a little of all, is where a last tuning begins, with the mean of their moments too."""
    seed = run.draw.randrange(999)
    languages = [near(Language(seed), seed + i, 0.3) for i in (1, 2, 3)]
    published = Decoder(12)
    taught(published, lambda: Language(seed).rows(16, 24), next_loss, 40)
    models, states = [], []
    for language in languages:
        own = copy.deepcopy(published)
        optimizer = adam(own, 1e-3)
        for _ in range(25):
            optimizer.zero_grad()
            next_loss(own, language.rows(12, 24)).backward()
            optimizer.step()
        models.append(own.state_dict())
        states.append(optimizer.state_dict())
    model = copy.deepcopy(published)
    model.load_state_dict({k: torch.stack([m[k] for m in models]).mean(0) for k in models[0]})
    optimizer = adam(model, 1e-3)
    mean: dict[str, Any] = copy.deepcopy(states[0])
    for i, state in mean["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.stack([s["state"][i][name] for s in states]).mean(0)
    optimizer.load_state_dict(mean)
    check = torch.cat([language.rows(40, 24, apart(901)) for language in languages])
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    train(run, model, optimizer, lambda: torch.cat([m.rows(6, 24) for m in languages]), next_loss, 50)
