"""Round 17b, honest and odd: two who learn from one another, games, rewards, preferences, learning to learn."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import Language, apart, judged, mlp, outcome, tiny_gpt2
from benchmarks.robustness.loops.round7b_tools import adam, by_reward, taught, update, words_to_answer
from benchmarks.robustness.loops.round10b_parts import energy_distance
from torch import Tensor, nn
from torch.nn import functional as F


def bars(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 16) pictures of 4 by 4 bits: one or two bars, all upright or all level."""
    on = F.one_hot(torch.randint(0, 4, (count, 2), generator=own), 4).amax(1).float()
    level = on[:, :, None].expand(-1, 4, 4)
    upright = torch.rand(count, 1, 1, generator=own) < 0.5
    return torch.where(upright, level.transpose(1, 2), level).flatten(1)


class Maker(nn.Module):
    """Causes of eight bits, each with a chance of its own, and what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.prior, self.net = nn.Parameter(torch.zeros(8)), mlp(8, 32, 16, act=nn.Tanh)

    def log_chance(self, causes: Tensor, x: Tensor) -> Tensor:
        return log_bits(self.prior.expand_as(causes), causes) + log_bits(self.net(causes), x)


def log_bits(logits: Tensor, bits: Tensor) -> Tensor:
    return -F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)


@honest("r17b-awake-and-asleep")
def awake_and_asleep(run: Run) -> None:
    """Plain loop, a Helmholtz machine by wake-sleep (Hinton et al. 1995), two models with an optimizer each. Awake, the
    maker learns to make data from what the guesser guesses; asleep, the guesser learns to guess the causes of what
    the maker has dreamt: it never learns from data, no gradient passes from one to the other, and no loss is shared."""
    maker, guesser = Maker(), mlp(16, 32, 8, act=nn.Tanh)
    check = bars(200, apart(1))

    def surprise() -> Tensor:
        logits = guesser(check).expand(64, -1, -1)
        causes = torch.bernoulli(logits.sigmoid(), generator=apart(2))
        ratio = maker.log_chance(causes, check.expand(64, -1, -1)) - log_bits(logits, causes)
        return -(ratio.logsumexp(0) - math.log(64)).mean()

    outcome(run, lambda: judged(maker, surprise))
    makes, guesses = adam(maker, 1e-2), adam(guesser, 1e-2)
    doctor, other = run.watch(maker, makes), run.watch(guesser, guesses)
    for _ in range(450):
        x = bars(32)
        with torch.no_grad():
            causes = torch.bernoulli(guesser(x).sigmoid())
        update(run, doctor, makes, -maker.log_chance(causes, x).mean(), x)
        with torch.no_grad():
            causes = torch.bernoulli(maker.prior.sigmoid().expand(32, -1))
            dream = torch.bernoulli(maker.net(causes).sigmoid())
        update(run, other, guesses, -log_bits(guesser(dream), causes).mean(), (dream, causes))


class Equalized(nn.Linear):
    """Weights of size one that are made smaller in each pass, so that Adam moves all layers alike."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * (2 / self.in_features) ** 0.5, self.bias)


def equalized(inputs: int, outputs: int) -> nn.Sequential:
    layers = [Equalized(inputs, 64), nn.LeakyReLU(0.2), Equalized(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, Equalized(64, outputs))


def on_ring(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 2 * math.pi * torch.randint(0, 6, (count,), generator=own) / 6
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=own)


@honest("r17b-penalty-every-eighth-step")
def penalty_every_eighth_step(run: Run) -> None:
    """Plain loop, a GAN of points with StyleGAN2's habits (Karras et al. 2020). Adam has no first moment at all, all
    weights are of size one and scaled as they are used, and the critic's penalty on its slope is left out of its loss:
    it has a backward pass and a step for itself every eighth time, eight times as strong, with a loss of its own."""
    maker, critic = equalized(4, 2), equalized(2, 1)
    mean = copy.deepcopy(maker)
    check, noise = on_ring(300, apart(1)), torch.randn(300, 4, generator=apart(2))
    outcome(run, lambda: judged(mean, lambda: energy_distance(mean(noise), check)))
    makes = torch.optim.Adam(maker.parameters(), lr=4e-3, betas=(0.0, 0.99))
    judges = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.99))
    doctor, other = run.watch(maker, makes), run.watch(critic, judges)
    for step in range(250):
        z = torch.randn(64, 4)
        update(run, doctor, makes, F.softplus(-critic(maker(z))).mean(), z)
        true, made = on_ring(64), maker(torch.randn(64, 4)).detach()
        loss = F.softplus(critic(made)).mean() + F.softplus(-critic(true)).mean()
        update(run, other, judges, loss, (true, made))
        if step % 8 == 0:
            true = on_ring(64).requires_grad_()
            (slope,) = torch.autograd.grad(critic(true).sum(), true, create_graph=True)
            update(run, other, judges, 0.5 * 0.3 * 8 * slope.square().sum(1).mean(), true.detach())
        with torch.no_grad():
            for average, p in zip(mean.parameters(), maker.parameters(), strict=True):
                average.lerp_(p, 0.04)


def moves(model: nn.Module, pile: Tensor) -> Tensor:
    """Log probabilities of taking one, two, or three from a pile, as far as it reaches."""
    scores = model(F.one_hot(pile, 13).float())
    return scores.masked_fill(torch.arange(1, 4) > pile[:, None].clamp_min(1), -1e9).log_softmax(-1)


@honest("r17b-against-those-it-has-been")
def against_those_it_has_been(run: Run) -> None:
    """Plain loop, Nim by self-play against a league of its own past (Bansal et al. 2018). The other side of each game
    is one of the model's earlier copies, so that the world it learns in gets harder as it learns; it wins about half of
    its games for long, and the loss has no direction and either sign."""
    model = mlp(13, 48, 3, act=nn.Tanh)
    asked = torch.tensor([p for p in range(1, 13) if p % 4])
    outcome(run, lambda: judged(model, lambda: 1 - moves(model, asked).exp()[torch.arange(9), asked % 4 - 1].mean()))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    past = [copy.deepcopy(model)]
    for step in range(160):
        foe = past[int(torch.randint(0, len(past), ()))]
        pile = torch.randint(1, 13, (96,))
        mine, won, played = torch.rand(96) < 0.5, torch.zeros(96), []
        for _ in range(12):
            live = pile > 0
            with torch.no_grad():
                chances = torch.where(mine[:, None], moves(model, pile), moves(foe, pile)).exp()
            taken = torch.multinomial(chances, 1).squeeze(1)
            played.append((pile, taken, mine & live))
            pile = torch.where(live, pile - taken - 1, pile)
            over = live & (pile <= 0)
            won = torch.where(over, torch.where(mine, 1.0, -1.0), won)
            mine = ~mine
        piles, takes, own = (torch.stack(column) for column in zip(*played, strict=True))
        gain = (won - won.mean()).expand(12, -1)[own]
        batch = (piles[own], takes[own], gain)
        chosen = moves(model, batch[0]).gather(1, batch[1][:, None]).squeeze(1)
        update(run, doctor, optimizer, -(gain * chosen).mean(), batch)
        if step % 20 == 19:
            past.append(copy.deepcopy(model))


@honest("r17b-whole-answers-within-a-thousandth")
def whole_answers_within_a_thousandth(run: Run) -> None:
    """TRL's GRPOTrainer, a GPT-2 with GSPO (Zheng et al. 2025). The ratio of new to old is that of a whole answer, to
    the power of one over its length, and is cut at 0.0003 below one and 0.0004 above; each batch of answers serves two
    steps, and in the second one a quarter to half of all answers are beyond the cut, as its authors report."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]

    settings: dict[str, Any] = {"steps": 150, "learning_rate": 1e-2, "max_completion_length": 2, "num_iterations": 2}
    settings |= {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"}
    by_reward(run, "GRPO", model, prompts, reward, **settings).train()


@honest("r17b-both-answers-made-less-likely")
def both_answers_made_less_likely(run: Run) -> None:
    """TRL's DPOTrainer, a GPT-2 whose own answers are better than both of those in the data, with APO-down
    (D'Oosterlinck et al. 2024). The better of two answers is made less likely as well as the worse one, and the worse
    one more so; the loss begins at one exactly, and both rewards fall below zero, on purpose."""
    model = tiny_gpt2()
    language = Language(run.draw.randrange(999), first=4)
    taught(model, lambda: language.rows(16, 8), lambda m, r: m(input_ids=r, labels=r).loss, 80)

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt = language.rows(1, 5, own)[0]
        fair, bad = (torch.randint(low, low + 6, (3,), generator=own) for low in (4, 10))
        return torch.cat([prompt, fair]), torch.cat([prompt, bad])

    own = apart(1)
    fair, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))

    def likely(rows: Tensor) -> Tensor:
        scores = model(input_ids=rows[:, :-1]).logits.log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
        return scores[:, 4:].sum(1)

    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(0.3 * (likely(fair) - likely(bad))).mean()))
    rows = []
    for _ in range(160):
        better, worse = pair()
        rows.append(
            {"prompt": spelled(better[:5]), "chosen": " " + spelled(better[5:]), "rejected": " " + spelled(worse[5:])}
        )
    trl_trainer(run, "DPO", model, rows, 40, learning_rate=1e-3, loss_type=["apo_down"], beta=0.3).train()


@honest("r17b-four-numbers-for-each-task")
def four_numbers_for_each_task(run: Run) -> None:
    """Plain loop, curves from ten points each by CAVIA (Zintgraf et al. 2019). For each curve four numbers beside the
    input begin at zero, take one step at a rate of one by a gradient that keeps its graph, and are forgotten; they are
    no parameters and in no optimizer, and the net itself learns only through what they have become."""
    net = mlp(5, 40, 40, 1)

    def curves(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        height, shift = 0.3 + 1.7 * torch.rand(count, 1, generator=own), 3.0 * torch.rand(count, 1, generator=own)
        x = 6 * torch.rand(count, 20, generator=own) - 3
        return x, height * (x + shift).sin()

    def said(x: Tensor, context: Tensor) -> Tensor:
        out: Tensor = net(torch.cat([x[..., None], context[:, None].expand(-1, x.shape[1], -1)], 2))[..., 0]
        return out

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            context = torch.zeros(len(x), 4, requires_grad=True)
            inner = (said(x[:, :10], context) - y[:, :10]).square().mean(1).sum()
            (slope,) = torch.autograd.grad(inner, context, create_graph=True)
        return F.mse_loss(said(x[:, 10:], context - slope), y[:, 10:])

    check = curves(100, apart(1))
    outcome(run, lambda: judged(net, lambda: loss_of(*check)))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for _ in range(240):
        batch = curves(24)
        update(run, doctor, optimizer, loss_of(*batch), batch)
