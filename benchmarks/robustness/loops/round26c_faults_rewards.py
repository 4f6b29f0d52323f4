"""Round 26c, mistakes in what is learned by rewards: priorities, advantages."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import judged, mlp, outcome
from benchmarks.robustness.loops.round7b_tools import adam, corridor, update
from benchmarks.robustness.loops.round26c_parts import slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26c-priorities-by-place-in-the-batch")
def priorities_by_place_in_the_batch(run: Run, wrong: bool) -> None:
    """Plain loop, values of actions along eight places, from a memory of which few transitions are worth much. Errors
    of a batch should become the priorities of its rows in the memory; they are written at the places that rows have in
    the batch, the memory's first thirty-two, and all others keep the priority they came with. The twin writes them at
    the rows. Judged by the distance from the true values."""
    net, copy = mlp(8, 32, 2), mlp(8, 32, 2)
    copy.load_state_dict(net.state_dict())
    outcome(run, corridor(net, 1.0))
    walked: list[tuple[int, int, float, bool]] = []

    def walk(always_right: bool) -> None:
        for place in range(8):
            right = always_right or bool(torch.rand(()) < 0.5)
            walked.append((place, int(right), float(right and place == 7), not right or place == 7))
            if not right:
                break

    while len(walked) < 600:
        walk(False)
    for _ in range(3):
        walk(True)
    place, action, reward, over = (torch.tensor(column) for column in zip(*walked, strict=True))
    seen, after = F.one_hot(place, 8).float(), F.one_hot((place + 1).clamp_max(7), 8).float()
    priority = torch.ones(len(walked))
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    for step in range(150):
        rows = torch.multinomial(priority, 32, replacement=True)
        with torch.no_grad():
            target = reward[rows] + 0.9 * copy(after[rows]).amax(1) * ~over[rows]
        error = net(seen[rows]).gather(1, action[rows, None]).squeeze(1) - target
        update(run, doctor, optimizer, error.square().mean(), (seen[rows], action[rows], target))
        priority[torch.arange(32) if wrong else rows] = error.detach().abs() + 0.01
        if step % 5 == 4:
            copy.load_state_dict(net.state_dict())


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

    starts = begun(256, torch.Generator().manual_seed(1))

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
