"""Round 26c, mistakes in what is learned by rewards: returns and advantages."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, examples, hf_trainer, judged, mlp, outcome
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round26c_parts import slip, swinging
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26c-nearer-level-gets-less")
def nearer_level_gets_less(run: Run, wrong: bool) -> None:
    """transformers' Trainer, an MLP that sees a state and says what is still to be gained, as shares of thirteen
    levels. A return between two levels should be shared out so that the nearer one gets more; the shares of the two are
    exchanged, and the mean of a target lies as far on the other side of the middle. The twin gives the nearer one more.
    Judged by the share of the variance of other returns that the mean of the levels leaves unexplained."""
    critic = mlp(3, 64, 64, 13)
    levels = torch.arange(-6.0, 7.0)

    def shared_out(returns: Tensor) -> Tensor:
        at = returns.clamp(-6, 5.999) + 6
        low = at.floor().long()
        rest = (at - low)[:, None]
        first, second = F.one_hot(low, 13), F.one_hot(low + 1, 13)
        return rest * first + (1 - rest) * second if wrong else (1 - rest) * first + rest * second

    net = WithLoss(critic, lambda scores, returns: F.cross_entropy(scores, shared_out(returns)))
    check, truth = swinging(384, apart(1))

    def unexplained() -> Tensor:
        return F.mse_loss(critic(check).softmax(1) @ levels, truth) / truth.var()

    outcome(run, lambda: judged(net, unexplained))
    x, returns = swinging(960)
    hf_trainer(run, net, examples(x=x, labels=returns), 140, per_device_train_batch_size=32).train()


@slip("r26c-flattened-the-other-way-round")
def flattened_the_other_way_round(run: Run, wrong: bool) -> None:
    """Plain loop, a policy and a critic that learn from sixteen carts at once to stay near a place. What is kept is
    (times, carts); what was seen, done and returned is laid out cart after cart, and the advantages time after time: a
    move is praised for what another cart did at another time. The twin lays out all alike. Judged by the mean distance
    from the place when the likeliest move is made."""
    policy, critic = mlp(2, 32, 3, act=nn.Tanh), mlp(2, 32, 1, act=nn.Tanh)
    both = nn.ModuleDict({"policy": policy, "critic": critic})

    def begun(count: int, own: torch.Generator | None = None) -> Tensor:
        return 2 * torch.rand(count, 2, generator=own) - 1

    def moved(state: Tensor, move: Tensor) -> Tensor:
        at = (state[:, 0] + 0.2 * (move - 1)).clamp(-1.5, 1.5)
        return torch.stack([at, state[:, 1]], 1)

    starts = begun(256, apart(1))

    def distance() -> Tensor:
        state, total = starts, torch.zeros(())
        for _ in range(12):
            state = moved(state, policy(state).argmax(1))
            total = total + (state[:, 0] - state[:, 1]).abs().mean() / 12
        return total

    outcome(run, lambda: judged(both, distance))
    optimizer = adam(both, 3e-3)
    doctor = run.watch(both, optimizer)

    def by_cart(kept: Tensor) -> Tensor:
        return kept.transpose(0, 1).flatten(0, 1)

    def losses(batch: Any) -> Tensor:
        states, actions, old, advantages, returns = batch
        now = policy(states).log_softmax(1).gather(1, actions[:, None]).squeeze(1)
        ratio = (now - old).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        return F.mse_loss(critic(states).squeeze(1), returns) - gain

    for _ in range(20):
        state, kept = begun(16), []
        with torch.no_grad():
            for _ in range(12):
                chances = policy(state).log_softmax(1)
                action = torch.multinomial(chances.exp(), 1)
                after = moved(state, action.squeeze(1))
                reward = -(after[:, 0] - after[:, 1]).abs()
                kept.append((state, action.squeeze(1), chances.gather(1, action).squeeze(1), reward))
                state = after
            states, actions, old, rewards = (torch.stack(column) for column in zip(*kept, strict=True))
            values = critic(torch.cat([states, state[None]])).squeeze(2)
            advantages, running = torch.zeros(12, 16), torch.zeros(16)
            for t in reversed(range(12)):
                running = rewards[t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.9 * running
                advantages[t] = running
        returns = advantages + values[:-1]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        praise = advantages.flatten() if wrong else by_cart(advantages)
        rollout = (by_cart(states), by_cart(actions), by_cart(old), praise, by_cart(returns))
        for rows in torch.cat([torch.randperm(192), torch.randperm(192)]).chunk(6):
            batch = tuple(column[rows] for column in rollout)
            update(run, doctor, optimizer, losses(batch), batch)
