"""What the loops of round 19c share. A fault's category and the patterns of a right diagnosis stand in
round19c_keys.json, what each loop is meant to do in round19c_intents.json; categories are those of round8b_parts.

round19c_proofs.json repeats by `python -m benchmarks.robustness.prove round19c`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round19c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def step_by_step(
    run: Run,
    model: nn.Module,
    optimizer: Any,
    batches: Any,
    loss: Callable[[nn.Module, Any], Tensor],
    doctor: Any = None,
    clip: float | None = None,
) -> Any:
    """A plain loop over the given batches; the doctor is handed back, to go on with."""
    doctor = doctor or run.watch(model, optimizer)
    for batch in batches:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)
    return doctor


def next_words(logits: Tensor, words: Tensor) -> Tensor:
    """Mean cross-entropy; words of -100 are left out."""
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


# what moves weights


def warming(net: nn.Module, rate: float, warmup: int, within_the_epoch: bool) -> Any:
    """A Lightning module that warms its rate up by hand, by the batch's number in the epoch or by that of the step."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            step = batch_idx if within_the_epoch else self.trainer.global_step
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / warmup)
            optimizer.step(closure=optimizer_closure)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.parameters(), lr=rate)

    return Lit()


def averaged_for_evaluation(evaluate: Callable[[nn.Module], float], every: int, backed_up_once: bool) -> Any:
    """A callback of transformers' Trainer that keeps an average of the weights, and lends it for an evaluation."""
    from transformers import TrainerCallback

    class Averaging(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.average: dict[str, Tensor] = {}
            self.backup: dict[str, Tensor] = {}
            self.scores: list[float] = []

        @torch.no_grad()
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = given["model"]
            for name, p in model.named_parameters():
                if name in self.average:
                    self.average[name].lerp_(p, 0.1)
                else:
                    self.average[name] = p.detach().clone()
            if state.global_step % every == 0:
                self.lend(model)

        def lend(self, model: nn.Module) -> None:
            for name, p in model.named_parameters():
                if not backed_up_once or name not in self.backup:
                    self.backup[name] = p.detach().clone()
                p.copy_(self.average[name])
            self.scores.append(evaluate(model))
            for name, p in model.named_parameters():
                p.copy_(self.backup[name])

    return Averaging()


# adapters


class Bottleneck(nn.Module):
    """A sublayer that was there, and behind it an adapter, whose way up begins at zero."""

    def __init__(self, inner: nn.Module, width: int, narrow: int, bypass: bool) -> None:
        super().__init__()
        self.inner, self.bypass = inner, bypass
        self.down, self.up = nn.Linear(width, narrow), nn.Linear(narrow, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, *given: Any) -> Tensor:
        h: Tensor = self.inner(*given)
        change: Tensor = self.up(F.gelu(self.down(h)))
        return h + change if self.bypass else change


class Principal(nn.Module):
    """A linear layer whose largest directions are two trained factors, beside what is frozen: the rest of its matrix,
    or all of it where not `rest`."""

    def __init__(self, linear: nn.Linear, rank: int, rest: bool) -> None:
        super().__init__()
        u, s, v = torch.linalg.svd(linear.weight.detach(), full_matrices=False)
        root = s[:rank].sqrt()
        self.up, self.down = nn.Parameter(u[:, :rank] * root), nn.Parameter(root[:, None] * v[:rank])
        frozen = linear.weight.detach() - (self.up @ self.down).detach() if rest else linear.weight.detach().clone()
        self.register_buffer("frozen", frozen)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.frozen, self.bias) + x @ self.down.T @ self.up.T  # type: ignore[arg-type]


class Scored(nn.Module):
    """A small Llama that gives texts a number, read from the state at a given place of each."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.body, self.score = SmallLlama(words), nn.Linear(32, 1)
        self.body.head = nn.Identity()  # type: ignore[assignment]

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        out: Tensor = self.score(self.body(ids)[torch.arange(len(ids)), places]).squeeze(-1)
        return out


def compared(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pairs of texts of four to twelve words, 1 to 12, 0 being padding: first the one in which a larger share of words
    is above 6."""
    texts, shares = [], []
    for _ in range(2):
        ids = torch.randint(1, 13, (count, 12), generator=own)
        there = torch.arange(12) < torch.randint(4, 13, (count, 1), generator=own)
        texts.append(ids * there)
        shares.append(((ids > 6) & there).sum(1) / there.sum(1))
    better = (shares[0] >= shares[1])[:, None]
    return torch.where(better, *texts), torch.where(better, texts[1], texts[0])


# policies and their worlds


class Squashed(nn.Module):
    """A policy of two numbers between minus one and one: a Gaussian through tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(3, 48, 48, 4)

    def forward(self, states: Tensor, jacobian: bool) -> tuple[Tensor, Tensor]:
        """Drawn actions and their log probabilities."""
        mean, spread = self.body(states).chunk(2, -1)
        normal = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
        raw = normal.rsample()
        log_probability = normal.log_prob(raw).sum(-1)
        if jacobian:
            log_probability = log_probability - 2 * (0.6931 - raw - F.softplus(-2 * raw)).sum(-1)
        return raw.tanh(), log_probability


class Meadow:
    """Five by five squares, some of them swamp; four moves; the walk ends in the last corner. A step costs one, a step
    into swamp four."""

    def __init__(self, seed: int) -> None:
        self.swamp = torch.rand(25, generator=apart(seed)) < 0.25
        self.swamp[24] = False

    def seen(self, squares: Tensor) -> Tensor:
        return F.one_hot(squares, 25).float()

    def move(self, squares: Tensor, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next squares, rewards, and 1 where the walk ends."""
        by = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])[moves]
        after = (torch.stack([squares // 5, squares % 5], -1) + by).clamp(0, 4)
        to = after[..., 0] * 5 + after[..., 1]
        return to, -1.0 - 3.0 * self.swamp[to].float(), (to == 24).float()

    def cost(self, model: nn.Module, longest: int = 40) -> Tensor:
        """The mean cost of walks from every square by the best-valued moves."""
        squares, total, going = torch.arange(24), torch.zeros(24), torch.ones(24)
        for _ in range(longest):
            squares, reward, ended = self.move(squares, model(self.seen(squares)).argmax(-1))
            total, going = total - going * reward, going * (1 - ended)
        return total.mean()


class Lines:
    """Twelve stations and up to four lines out of each, of unequal lengths; the journey ends at the last station."""

    def __init__(self, seed: int) -> None:
        own = apart(seed)
        self.to = torch.randint(0, 12, (12, 4), generator=own)
        self.to[:, 0] = (torch.arange(12) + 1) % 12
        self.length = 0.5 + torch.rand(12, 4, generator=own)
        self.open = torch.rand(12, 4, generator=own) < 0.35
        self.open[:, 0] = True
        self.ends = (self.to == 11).float()

    def values(self, discount: float) -> Tensor:
        """Of each line out of each station, by dynamic programming."""
        q = torch.zeros(12, 4)
        for _ in range(400):
            best = q.masked_fill(~self.open, -1e9).amax(1)
            q = -self.length + discount * (1 - self.ends) * best[self.to]
        return q


class Store:
    """A shop's stock of one good, 0 to 8, as a number between -1 and 1; an order of 0 to 3 comes in before the next
    customers, 0 to 3 of them, each as likely as another. Storing costs, ordering costs, and so does a lost sale."""

    def step(self, stock: Tensor, order: Tensor, demand: Tensor) -> tuple[Tensor, Tensor]:
        there = (stock + order).clamp_max(8)
        left = (there - demand).clamp_min(0)
        lost = (demand - there).clamp_min(0)
        return left, -(0.1 * left + 0.3 * (order > 0) + 1.0 * lost)

    def seen(self, stock: Tensor) -> Tensor:
        return stock[..., None] / 4.0 - 1.0

    def values(self, discount: float) -> Tensor:
        """(9, 4): of each order at each stock, by dynamic programming."""
        stock, order = torch.arange(9)[:, None, None], torch.arange(4)[None, :, None]
        left, reward = self.step(stock, order, torch.arange(4)[None, None])
        q = torch.zeros(9, 4)
        for _ in range(300):
            q = (reward + discount * q.amax(1)[left]).mean(2)
        return q


class ActorCritic(nn.Module):
    """Scores of three moves, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.moves, self.value = nn.Linear(48, 3), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.moves(h), self.value(h).squeeze(-1)


def carts(x: Tensor, moves: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Carts of a place and a speed; a move pushes, and the reward is less the farther from the middle the cart is."""
    place, speed = x.unbind(-1)
    place = (place + 0.5 * speed).clamp(-2, 2)
    speed = 0.6 * speed + 0.4 * (moves - 1) + noise
    return torch.stack([place, speed], -1), -place.square()


def estimated(rewards: Tensor, values: Tensor, last: Tensor, discount: float = 0.9, trace: float = 0.9) -> Tensor:
    """Generalised advantages, from the last step to the first; the first axis is time."""
    out, running, following = torch.zeros_like(rewards), torch.zeros_like(last), last
    for t in reversed(range(len(rewards))):
        running = rewards[t] + discount * following - values[t] + discount * trace * running
        out[t], following = running, values[t]
    return out
