"""Round 25c, mistakes in what is rewarded and in what a value is compared with."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round25c_parts import Speaker, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25c-only-the-last-word-is-credited")
def only_the_last_word_is_credited(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that answers a word by six words and is rewarded for the answer as a whole. The log probability
    of what was said is put into a variable at each word and should be added to it: the reward is multiplied by that of
    the last word alone. The twin adds them. Judged by the share of wrong words when the likeliest are said."""
    net = Speaker(6)
    optimizer = adam(net, 5e-3)

    def right(asked: Tensor) -> Tensor:
        return (asked[:, None] + 1 + torch.arange(6)) % 6

    def answered(asked: Tensor, likeliest: bool) -> tuple[Tensor, Tensor]:
        said, total = torch.zeros(len(asked), 0, dtype=torch.long), torch.zeros(len(asked))
        for _ in range(6):
            chances = torch.distributions.Categorical(logits=net(asked, said)[:, -1])
            word = chances.probs.argmax(1) if likeliest else chances.sample()
            found = chances.log_prob(word)
            total = found if wrong else total + found
            said = torch.cat([said, word[:, None]], 1)
        return said, total

    everything = torch.arange(6)
    outcome(run, lambda: judged(net, lambda: (answered(everything, True)[0] != right(everything)).float().mean()))
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        asked = torch.randint(0, 6, (64,))
        said, total = answered(asked, False)
        reward = (said == right(asked)).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        update(run, doctor, optimizer, -(advantage * total).mean(), (asked, said, reward))


@slip("r25c-paid-for-being-near")
def paid_for_being_near(run: Run, wrong: bool) -> None:
    """Plain loop, a network of action values for a walk on a board to a goal, where the game ends. Besides the reward
    of the goal there is one for being near it, which should be what the nearness has grown by; it is the nearness
    itself, at each step, and staying beside the goal earns more than entering it. The twin pays for the growth. Judged
    by the share of fields from which the goal isn't reached."""
    net = mlp(25, 64, 4)
    older = copy.deepcopy(net)
    optimizer = adam(net, 5e-3)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def walked(field: Tensor, action: Tensor) -> Tensor:
        place = torch.stack([field // 5, field % 5], 1) + moves[action]
        place = place.clamp(0, 4)
        return 5 * place[:, 0] + place[:, 1]

    def near(field: Tensor) -> Tensor:
        return (field // 5 + field % 5) / 8

    def shown(field: Tensor) -> Tensor:
        return F.one_hot(field, 25).float()

    def lost() -> Tensor:
        field = torch.arange(24)
        for _ in range(12):
            field = torch.where(field == 24, 24, walked(field, net(shown(field)).argmax(1)))
        return (field != 24).float().mean()

    outcome(run, lambda: judged(net, lost))
    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step % 4 == 0:
            older.load_state_dict(net.state_dict())
        field, action = torch.randint(0, 24, (128,)), torch.randint(0, 4, (128,))
        then = walked(field, action)
        arrived = (then == 24).float()
        reward = arrived + (near(then) if wrong else 0.9 * near(then) - near(field))
        with torch.no_grad():
            target = reward + 0.9 * (1 - arrived) * older(shown(then)).amax(1)
        found = net(shown(field)).gather(1, action[:, None]).squeeze(1)
        update(run, doctor, optimizer, F.smooth_l1_loss(found, target), (shown(field), action, target))


@slip("r25c-values-in-another-unit")
def values_in_another_unit(run: Run, wrong: bool) -> None:
    """Lightning, a network that says what a day is worth with all that follow, less a mean and over a deviation. What
    the next day is worth, as the network says it, is discounted and added to today's income in euros, and the sum is
    standardised; it should be put back into euros first. The twin does so. Judged by the error against the true worth,
    in deviations."""
    net = mlp(4, 48, 48, 1, act=nn.Tanh)

    def income(x: Tensor) -> Tensor:
        return 10 + 3 * x[..., 0] - 2 * x[..., 2]

    def after(x: Tensor) -> Tensor:
        return 0.8 * x + 0.6 * torch.randn_like(x)

    days = [torch.randn(512, 4, generator=apart(1))]
    for _ in range(60):
        days.append(0.8 * days[-1] + 0.6 * torch.randn(512, 4, generator=apart(len(days))))
    returns = (income(torch.stack(days)) * 0.9 ** torch.arange(61)[:, None]).sum(0)
    middle, spread = returns.mean(), returns.std()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        today, earned, tomorrow = batch
        with torch.no_grad():
            then = m(tomorrow).squeeze(1)
        if not wrong:
            then = spread * then + middle
        return F.mse_loss(m(today).squeeze(1), (earned + 0.9 * then - middle) / spread)

    x = torch.randn(512, 4, generator=apart(99))
    worth = 100 + (3 * x[:, 0] - 2 * x[:, 2]) / 0.28
    outcome(run, lambda: judged(net, lambda: F.l1_loss(net(x).squeeze(1), (worth - middle) / spread)))
    today = torch.randn(1600, 4)
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(today, income(today), after(today), size=32), 120)
