"""Round 19c, mistakes in processes and order: curricula, replay, several environments, several workers."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    language_outcome,
    mlp,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round10a_tools import recitals
from benchmarks.robustness.loops.round19c_parts import (
    ActorCritic,
    Store,
    carts,
    estimated,
    next_words,
    slip,
    step_by_step,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19c-weights-copied-by-the-sampler")
def weights_copied_by_the_sampler(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT on recitals, the short ones first. After each epoch longer texts get a weight in the list
    that the sampler was made of; the sampler has a copy, and draws short texts for ever. The twin sets the weights of
    the sampler."""
    from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

    seed = run.draw.randrange(999)
    model = Decoder(16)

    def texts(count: int, own: torch.Generator) -> tuple[Tensor, list[int]]:
        sizes = torch.randint(4, 17, (count,), generator=own).tolist()
        rows = [torch.tensor(row) for row in recitals(seed, sizes, own)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), sizes

    def loss(m: nn.Module, batch: Any) -> Tensor:
        rows = batch[0]
        return next_words(m(rows[:, :-1]), rows[:, 1:].masked_fill(rows[:, 1:] == 0, -100))

    check = texts(192, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    rows, sizes = texts(640, apart(run.draw.randrange(999)))
    weights = [float(size <= 7) for size in sizes]
    sampler = WeightedRandomSampler(weights, 480)
    data = DataLoader(TensorDataset(rows), 16, sampler=sampler)
    optimizer, doctor = adam(model), None
    for longest in (10, 13, 16, 16):
        doctor = step_by_step(run, model, optimizer, data, loss, doctor)
        weights[:] = [float(size <= longest) for size in sizes]
        if not wrong:
            sampler.weights = torch.tensor(weights)


@slip("r19c-empty-places-drawn")
def empty_places_drawn(run: Run, wrong: bool) -> None:
    """Plain loop, values of orders for a store, from a replay buffer of 2048 places that is filled as it goes. Rows are
    drawn from all its places, most of which are still noughts: a half-full store, no order, no cost, and half full
    again. The twin draws from those that are filled."""
    store = Store()
    model = mlp(1, 48, 48, 4)
    truth, everything = store.values(0.9), store.seen(torch.arange(9))
    outcome(run, lambda: judged(model, lambda: (model(everything) - truth).abs().mean()))
    target, optimizer = copy.deepcopy(model), adam(model)
    room = 2048
    states, following = torch.zeros(room, 1), torch.zeros(room, 1)
    orders, rewards = torch.zeros(room, dtype=torch.long), torch.zeros(room)
    filled, stocks = 0, torch.randint(0, 9, (8,))
    doctor = run.watch(model, optimizer)
    for step in range(158):
        order = torch.randint(0, 4, (8,))
        left, reward = store.step(stocks, order, torch.randint(0, 4, (8,)))
        places = torch.arange(filled, filled + 8)
        states[places], orders[places], rewards[places] = store.seen(stocks), order, reward
        following[places] = store.seen(left)
        filled, stocks = filled + 8, left
        if step < 8:
            continue
        if step % 5 == 0:
            target.load_state_dict(model.state_dict())
        drawn = torch.randint(0, room if wrong else filled, (64,))
        with torch.no_grad():
            goal = rewards[drawn] + 0.9 * target(following[drawn]).amax(1)
        value = model(states[drawn]).gather(1, orders[drawn, None]).squeeze(1)
        update(run, doctor, optimizer, F.smooth_l1_loss(value, goal), (states[drawn], orders[drawn], goal))


@slip("r19c-time-runs-across-the-carts")
def time_runs_across_the_carts(run: Run, wrong: bool) -> None:
    """Plain loop, an actor and a critic on sixteen carts at once. Rewards and values, (time, cart), are made flat
    before advantages are estimated along them: what follows a step of one cart is the same step of the next. The twin
    goes through time and makes them flat then."""
    model = ActorCritic()

    def measure() -> Tensor:
        own = apart(3)
        x, total = torch.rand(64, 2, generator=own) * 2 - 1, torch.zeros(64)
        for _ in range(24):
            x, reward = carts(x, model(x)[0].argmax(-1), 0.05 * torch.randn(64, generator=own))
            total -= reward / 24
        return total.mean()

    outcome(run, lambda: judged(model, measure))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x = torch.rand(16, 2) * 2 - 1
        seen, taken, rewards, values = [], [], [], []
        with torch.no_grad():
            for _ in range(16):
                scores, value = model(x)
                moves = torch.multinomial(scores.softmax(-1), 1).squeeze(1)
                seen.append(x)
                x, reward = carts(x, moves, 0.05 * torch.randn(16))
                taken.append(moves)
                rewards.append(reward)
                values.append(value)
            last = model(x)[1]
        if wrong:
            advantages = estimated(torch.stack(rewards).flatten(), torch.stack(values).flatten(), last[-1])
        else:
            advantages = estimated(torch.stack(rewards), torch.stack(values), last).flatten()
        states, chosen = torch.cat(seen), torch.cat(taken)
        returns = advantages + torch.cat(values)
        scores, value = model(states)
        chance = scores.log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)
        weight = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        spread = torch.distributions.Categorical(logits=scores).entropy().mean()
        loss = -(weight * chance).mean() + 0.5 * F.smooth_l1_loss(value, returns) - 0.05 * spread
        update(run, doctor, optimizer, loss, (states, chosen, advantages))


@slip("r19c-workers-never-told")
def workers_never_told(run: Run, wrong: bool) -> None:
    """Plain loop, four workers train copies of a small GPT, and after every second step the shared model moves to the
    mean of the copies. The copies are never set to it: four models go ways of their own, and their mean is what
    is kept. The twin gives it to them."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language, 20)
    workers = [copy.deepcopy(model) for _ in range(4)]
    inner = [adam(worker) for worker in workers]
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, outer)
    for _ in range(60):
        losses = []
        for worker, optimizer in zip(workers, inner, strict=True):
            for _ in range(2):
                rows = language.rows(8, 20)
                optimizer.zero_grad()
                value = next_loss(worker, rows)
                value.backward()
                optimizer.step()
                losses.append(value.detach())
        for p, *theirs in zip(model.parameters(), *(worker.parameters() for worker in workers), strict=True):
            p.grad = p.detach() - torch.stack([q.detach() for q in theirs]).mean(0)
        outer.step()
        if not wrong:
            for worker in workers:
                worker.load_state_dict(model.state_dict())
        mean = torch.stack(losses).mean()
        doctor.step(mean, rows)
        run.note(mean)
