"""Round 21i, honest and odd: rules of update with long memories, coarse moments, noise, and leaps."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Language,
    apart,
    class_outcome,
    fit,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from torch import Tensor, nn
from torch.nn import functional as F


class TwoMemories(torch.optim.Optimizer):
    """AdEMAMix (Pagliardini et al. 2024): Adam's mean of gradients and, several times as loud, one that is far older.
    Its weight and its memory grow over the first steps."""

    def __init__(
        self, parameters: Any, lr: float, loud: float = 5.0, oldest: float = 0.999, growing: int = 150
    ) -> None:
        options = {"lr": lr, "loud": loud, "oldest": oldest, "growing": growing}
        super().__init__(parameters, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "near": torch.zeros_like(p), "far": torch.zeros_like(p)}
                    state["square"] = torch.zeros_like(p)
                state["step"] += 1
                t = state["step"]
                share = min(1.0, t / group["growing"])
                half_life = (1 - share) / -math.log(0.9) + share / -math.log(group["oldest"])
                state["near"].lerp_(p.grad, 0.1)
                state["far"].lerp_(p.grad, 1 - math.exp(-1 / half_life))
                state["square"].lerp_(p.grad.square(), 0.001)
                mean = state["near"] / (1 - 0.9**t) + share * group["loud"] * state["far"]
                p.addcdiv_(mean, (state["square"] / (1 - 0.999**t)).sqrt() + 1e-8, value=-group["lr"])
        return loss


class Molecule(nn.Module):
    """Two rounds of sums over neighbours (GIN, Xu et al. 2019), then the mean over nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.rounds = nn.ModuleList([mlp(width, width, width), mlp(width, width, width)])
        self.leave = mlp(width, width, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes)
        for layer in self.rounds:
            h = layer(h + edges @ h / 2).relu()
        out: Tensor = self.leave(h.mean(1))[:, 0]
        return out


def molecules(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Nine nodes of four kinds, their bonds, and an energy that is a sum over bonds."""
    kinds = torch.randint(0, 4, (count, 9), generator=own)
    bonds = (torch.rand(count, 9, 9, generator=own) < 0.25).float().triu(1)
    strength = torch.tensor([[1.0, 0.2, 0.5, 0.0], [0.2, 0.8, 0.1, 0.4], [0.5, 0.1, 0.3, 0.9], [0.0, 0.4, 0.9, 0.6]])
    energy = (bonds * strength[kinds[:, :, None], kinds[:, None]]).sum((1, 2))
    return F.one_hot(kinds, 4).float(), bonds + bonds.transpose(1, 2), energy - 4.2


@honest("r21i-a-second-and-far-longer-memory")
def a_second_and_far_longer_memory(run: Run) -> None:
    """Lightning, a network over graphs by AdEMAMix (Pagliardini et al. 2024). Beside Adam's mean of gradients another
    is kept that remembers about a thousand steps, never corrected for its start, and counts five times as much: the
    steps are long, and most of what moves the weights was felt long ago."""
    net = Molecule()
    nodes, edges, energy = molecules(256, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(nodes, edges), energy)))
    data = loader(*molecules(960, apart(run.draw.randrange(999))), size=32)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0], batch[1]), batch[2])

    fit(run, lit(net, loss, lambda m: TwoMemories(m.parameters(), 1e-3)), data, 150)


class ByteAdam(torch.optim.Optimizer):
    """Adam with a byte for each entry of either moment (Dettmers et al. 2022, and bitsandbytes): blocks of 64 entries
    share their largest value, and a table of 256 marks, closer together near zero, gives an entry's part of it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        up = torch.logspace(-5, 0, 127)
        self.signed = torch.cat([-up.flip(0), torch.zeros(1), up])
        self.unsigned = torch.cat([torch.zeros(1), torch.logspace(-7, 0, 255)])

    def stored(self, x: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        blocks = F.pad(x.flatten(), (0, -x.numel() % 64)).view(-1, 64)
        most = blocks.abs().amax(1, keepdim=True).clamp_min(1e-20)
        middles = (marks[1:] + marks[:-1]) / 2
        return torch.bucketize(blocks / most, middles).to(torch.uint8), most

    def read(self, kept: tuple[Tensor, Tensor], marks: Tensor, like: Tensor) -> Tensor:
        return (marks[kept[0].long()] * kept[1]).flatten()[: like.numel()].view_as(like)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    zero = torch.zeros_like(p)
                    state |= {"step": 0, "mean": self.stored(zero, self.signed)}
                    state["square"] = self.stored(zero, self.unsigned)
                state["step"] += 1
                mean = self.read(state["mean"], self.signed, p).lerp_(p.grad, 0.1)
                square = self.read(state["square"], self.unsigned, p).lerp_(p.grad.square(), 0.005)
                state["mean"], state["square"] = self.stored(mean, self.signed), self.stored(square, self.unsigned)
                root = (square / (1 - 0.995 ** state["step"])).sqrt() + 1e-6
                p.addcdiv_(mean / (1 - 0.9 ** state["step"]), root, value=-group["lr"])
        return loss


class Mixture(nn.Module):
    """A GPT of one block whose feed-forward part is the best one of four, as in Switch (Fedus et al. 2021)."""

    def __init__(self, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention, self.router = Attention(width), nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(4))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        chances = self.router(h).softmax(-1)
        share, chosen = chances.max(-1)
        used = F.one_hot(chosen, 4).float()
        balance = 4 * (used.mean((0, 1)) * chances.mean((0, 1))).sum()
        told = torch.zeros_like(h)
        for index, expert in enumerate(self.experts):
            at = chosen == index
            told = told.masked_scatter(at[..., None], expert(h[at]))
        return self.head(self.norm3(x + share[..., None] * told)), balance


@honest("r21i-moments-in-a-byte-each")
def moments_in_a_byte_each(run: Run) -> None:
    """Accelerate, a GPT with four experts by Adam whose moments are kept in eight bits (Dettmers et al. 2022). Before
    each step both are looked up in a table of 256 marks, and rounded to it afterwards, so that they are never exact and
    small ones may round to the same mark again and again."""
    language = Language(run.draw.randrange(999))
    model = Mixture()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        logits, balance = net(batch[0][:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten()) + 0.01 * balance

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, (check,))))
    data = loader(language.rows(640, 24, apart(3)))
    prepared(run, model, ByteAdam(model.parameters(), 4e-3), data, loss, 3)


class ThereAndBack(torch.optim.SGD):
    """Each step adds new noise to the weights and takes off the noise of the step before (Orvieto et al. 2022)."""

    def __init__(self, parameters: Any, lr: float, spread: float) -> None:
        super().__init__(parameters, lr=lr)
        self.spread = spread

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        for p in (p for group in self.param_groups for p in group["params"]):
            new = self.spread * torch.randn_like(p)
            p.add_(new - self.state[p].get("noise", 0.0))
            self.state[p]["noise"] = new
        return loss

    @torch.no_grad()
    def settle(self) -> None:
        """At the end the last noise goes, too."""
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(self.state[p].pop("noise"))


@honest("r21i-noise-added-and-then-taken-back")
def noise_added_and_then_taken_back(run: Run) -> None:
    """Plain loop, convolutions name sounds by gradient descent with anticorrelated noise (Orvieto et al. 2022), which
    looks for flat minima. Every weight is shaken anew in each step and the last shake is taken off, so that weights
    move further than their gradients say but never drift away."""
    model = Listener()
    class_outcome(run, model, sounds(256, apart(1), 0.5))
    optimizer = ThereAndBack(model.parameters(), lr=0.3, spread=0.02)
    doctor = run.watch(model, optimizer)
    for _ in range(160):
        batch = sounds(64, noise=0.5)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
    optimizer.settle()


@honest("r21i-extrapolated-from-the-last-five")
def extrapolated_from_the_last_five(run: Run) -> None:
    """Plain loop, a perceptron on a whole table by gradient descent with Anderson's mixing (Anderson 1965; the library
    AADL, Pasini et al. 2021). After every sixth step the weights leap to a weighted sum of the last ones, with some
    weights below zero, such that their steps would nearly cancel; a leap that makes the loss higher is taken back."""
    seed = run.draw.randrange(999)
    model = mlp(6, 24, 1, act=nn.Tanh)
    number_outcome(run, model, table(400, seed, apart(1)))
    batch = table(400, seed, apart(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    doctor = run.watch(model, optimizer)
    past: list[Tensor] = []
    for step in range(150):
        past.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        optimizer.step()
        if step % 6 == 5:
            now = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            points = torch.stack([*past[-5:], now])
            moves = points.diff(dim=0)
            change = moves.diff(dim=0)
            square = change @ change.T + 1e-6 * change.square().sum() * torch.eye(len(change))
            shares = torch.linalg.solve(square, change @ moves[-1])
            leap = now - shares @ points[1:].diff(dim=0)
            with torch.no_grad():
                without = regress(model, batch)
                nn.utils.vector_to_parameters(leap, model.parameters())
                if regress(model, batch) > without:
                    nn.utils.vector_to_parameters(now, model.parameters())
        doctor.step(loss, batch)
        run.note(loss)


class Thermostat(torch.optim.Optimizer):
    """Stochastic gradients with Nosé and Hoover's thermostat (Ding et al. 2014): weights have speeds, which are given
    noise, and a friction that learns how warm they are."""

    def __init__(self, parameters: Any, lr: float, noise: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "noise": noise})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            rate, noise = group["lr"], group["noise"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"speed": math.sqrt(rate) * torch.randn_like(p), "friction": noise}
                speed = state["speed"]
                speed.mul_(1 - state["friction"]).sub_(rate * p.grad)
                speed.add_(math.sqrt(2 * noise * rate) * torch.randn_like(p))
                p.add_(speed)
                state["friction"] += float(speed.square().mean()) - rate


class Sampler:
    """Draws networks from what is believed after seeing a table, and answers by the mean of those it has drawn."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.net = mlp(6, 24, 1, act=nn.Tanh)
        self.optimizer = Thermostat(self.net.parameters(), 3e-5)
        self.drawn: list[dict[str, Tensor]] = []

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        likely = (self.net(x)[:, 0] - y).square().mean() * len(self.x) / (2 * 0.3**2)
        return likely + sum(p.square().sum() for p in self.net.parameters()) / 2

    @torch.no_grad()
    def answer(self, x: Tensor) -> Tensor:
        drawn = self.drawn or [dict(self.net.state_dict())]
        return torch.stack([torch.func.functional_call(self.net, weights, (x,))[:, 0] for weights in drawn]).mean(0)

    def walk(self, run: Run, steps: int) -> None:
        doctor = run.watch(self.net, self.optimizer)
        for step in range(steps):
            at = torch.randint(0, len(self.x), (100,))
            self.optimizer.zero_grad()
            loss = self.loss(self.x[at], self.y[at])
            loss.backward()
            self.optimizer.step()
            if step >= steps // 2 and step % 5 == 0:
                self.drawn.append({name: value.clone() for name, value in self.net.state_dict().items()})
            doctor.step(loss, (self.x[at], self.y[at]))
            run.note(loss)


@honest("r21i-a-thermostat-holds-the-noise")
def a_thermostat_holds_the_noise(run: Run) -> None:
    """A class of one's own, a Bayesian perceptron sampled with a thermostat (Ding et al. 2014). The loss is the whole
    table's minus logarithm of the posterior, in the thousands, at a rate of a few hundred-thousandths; noise is added
    to momenta without end, so that the weights never settle, and the mean of what they answer is what counts."""
    seed = run.draw.randrange(999)
    sampler = Sampler(*table(500, seed, apart(2), 0.3))
    x, y = table(400, seed, apart(1), 0.3)
    outcome(run, lambda: float(F.mse_loss(sampler.answer(x), y) / y.var()))
    sampler.walk(run, 200)


@honest("r21i-updated-on-the-way-back")
def updated_on_the_way_back(run: Run) -> None:
    """Plain loop, transformers' GPT-2 with an optimizer for each tensor that steps within the backward pass (LOMO, Lv
    et al. 2023; PyTorch's tutorial on an optimizer step fused into backward). As soon as a gradient is whole its weight
    is updated and the gradient is freed, so that after the backward pass there are no gradients and nothing to step."""
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, n_layer=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    optimizers = {p: torch.optim.AdamW([p], lr=4e-3) for p in model.parameters()}

    def step_at_once(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_at_once)
    doctor = run.watch(model)
    for _ in range(90):
        rows = language.rows(16, 24)
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        doctor.step(loss, rows)
        run.note(loss)
