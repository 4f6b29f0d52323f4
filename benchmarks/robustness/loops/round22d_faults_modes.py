"""Round 22d, mistakes in the loop around the step: tests, previews, replay, what is chosen to learn from."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from benchmarks.robustness.loops.round8b_parts import causal_loss
from benchmarks.robustness.loops.round22d_parts import (
    Buggy,
    Denoiser,
    Towards,
    accelerated,
    ballads,
    moons,
    moved_to,
    q_of_places,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22d-explores-no-more")
def explores_no_more(run: Run, wrong: bool) -> None:
    """Plain loop, Q-learning on a square of twenty-five places with a reward at one of them; half of the moves are any
    move. For a test every five steps chance is put to nought, and isn't put back: after the first test only the best
    guess is ever taken. The twin puts it back. Judged by the logarithm of how far
    values are from the true ones."""
    net, slow = q_of_places(), q_of_places()
    slow.load_state_dict(net.state_dict())
    goal = 12
    place, move = (t.flatten() for t in torch.meshgrid(torch.arange(25), torch.arange(4), indexing="ij"))
    after = moved_to(place, move, 5)
    truth = 0.9 ** ((after // 5 - goal // 5).abs() + (after % 5 - goal % 5).abs())
    away = place != goal

    def off() -> Tensor:
        return (net(place).gather(1, move[:, None]).squeeze(1) - truth)[away].abs().mean().log()

    outcome(run, lambda: judged(net, off))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    chance, found, replay = 0.5, [], []

    def moves(here: Tensor) -> Tensor:
        with torch.no_grad():
            best = net(here).argmax(1)
        return torch.where(torch.rand(len(here)) < chance, torch.randint(0, 4, here.shape), best)

    here = torch.randint(0, 5, (16,))
    for step in range(150):
        for _ in range(2):
            did = moves(here)
            then = moved_to(here, did, 5)
            replay.append((here, did, then))
            here = torch.where(then == goal, torch.randint(0, 5, then.shape), then)
        at = torch.randint(0, len(replay), (6,)).tolist()
        was, did, then = (torch.cat(column) for column in zip(*(replay[i] for i in at), strict=True))
        with torch.no_grad():
            target = torch.where(then == goal, 1.0, 0.9 * slow(then).max(1).values)
        value = F.mse_loss(net(was).gather(1, did[:, None]).squeeze(1), target)
        update(run, doctor, optimizer, value, (was, did, target))
        if step % 5 == 4:
            slow.load_state_dict(net.state_dict())
            usual, chance = chance, 0.0
            tested = torch.arange(5)
            for _ in range(12):
                tested = torch.where(tested == goal, tested, moved_to(tested, moves(tested), 5))
            found.append((tested == goal).float().mean())
            if not wrong:
                chance = usual


@slip("r22d-ten-steps-after-the-preview")
def ten_steps_after_the_preview(run: Run, wrong: bool) -> None:
    """accelerate, a diffusion model of points in a plane with two hundred levels of noise. A preview every twenty steps
    goes down in ten steps and sets the number of steps to ten for that, from which training draws its levels too: from
    the first preview on only the ten lowest levels are taught. The twin sets it back. Judged by the error of the noise
    over all levels."""
    net = Denoiser()
    share = torch.cos(torch.linspace(0, 1, 202)[1:-1] * torch.pi / 2) ** 2
    settings = {"steps": 200}

    def noised(x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        return share[level, None].sqrt() * x + (1 - share[level, None]).sqrt() * noise

    own = apart(1)
    check = moons(400, own), torch.arange(400) % 200, torch.randn(400, 2, generator=own)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(noised(*check), check[1] / 200), check[2])))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        level, noise = torch.randint(0, settings["steps"], (len(x),)), torch.randn_like(x)
        return F.mse_loss(m(noised(x, level, noise), level / 200), noise)

    @torch.no_grad()
    def preview() -> Tensor:
        every = 200 // settings["steps"]
        x = torch.randn(32, 2)
        for level in range(199, -1, -every):
            a, b = share[level], share[level - every] if level >= every else torch.tensor(1.0)
            noise = net(x, torch.full((32,), level / 200))
            x = b.sqrt() * (x - (1 - a).sqrt() * noise) / a.sqrt() + (1 - b).sqrt() * noise
        return x

    previews = []

    def after_step(step: int) -> None:
        if step % 20 == 0:
            settings["steps"] = 10
            previews.append(preview())
            if not wrong:
                settings["steps"] = 200

    accelerated(run, net, adam(net, 3e-3), loader(moons(960), size=32), loss, 4, after_step)


@slip("r22d-one-array-for-all-states")
def one_array_for_all_states(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP that says where a buggy will be, from what was seen in drives of twenty steps. The simulator
    moves its array on in place, and the replay keeps that array and no copies: all states of a drive, those before a
    step and those after it, are the drive's last one. The twin copies. Judged by the unexplained share of the next
    state in other drives."""
    draws = np.random.default_rng(run.draw.randrange(9999))
    net = mlp(6, 64, 64, 4)

    def drive(buggy: Buggy, by_reference: bool) -> list[tuple[Any, Any, Any]]:
        kept, state = [], buggy.reset()
        state = state if by_reference else state.copy()
        for _ in range(20):
            thrust = buggy.own.normal(size=2).astype(np.float32)
            seen = buggy.step(thrust)
            seen = seen if by_reference else seen.copy()
            kept.append((state, thrust, seen))
            state = seen
        return kept

    def tensors(rows: list[tuple[Any, Any, Any]]) -> tuple[Tensor, Tensor]:
        state, thrust, seen = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        return torch.cat([state, thrust], 1), seen

    other = Buggy(np.random.default_rng(1))
    number_outcome(run, net, tensors([row for _ in range(20) for row in drive(other, False)]))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    buggy, replay = Buggy(draws), []
    for step in range(150):
        if step % 5 == 0:
            replay += drive(buggy, wrong)
        batch = tensors([replay[i] for i in draws.integers(0, len(replay), 32)])
        update(run, doctor, optimizer, F.mse_loss(net(batch[0]), batch[1]), batch)


@slip("r22d-another-goal-the-old-reward")
def another_goal_the_old_reward(run: Run, wrong: bool) -> None:
    """Plain loop, Q-learning on a square of sixteen places towards a goal that is given. In half of the rows the goal
    is replaced by a place that was reached later; reward and end are kept as they were for the first goal, so that
    whoever arrives there is told that he did not. The twin works them out anew. Judged by how far values are from the
    true ones."""
    net, slow = Towards(), Towards()
    slow.load_state_dict(net.state_dict())
    places = torch.arange(16)
    place, goal, move = (t.flatten() for t in torch.meshgrid(places, places, torch.arange(4), indexing="ij"))
    after = moved_to(place, move)
    far = (after // 4 - goal // 4).abs() + (after % 4 - goal % 4).abs()
    truth = -(1 - 0.8**far) / (1 - 0.8)
    away = place != goal

    def off() -> Tensor:
        return (net(place, goal).gather(1, move[:, None]).squeeze(1) - truth)[away].abs().mean()

    outcome(run, lambda: judged(net, off))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    walks, moves, goals = torch.empty(0, 13, dtype=torch.long), torch.empty(0, 12, dtype=torch.long), torch.empty(0)
    for step in range(150):
        if step % 5 == 0:
            path = [torch.randint(0, 16, (16,))]
            taken = torch.randint(0, 4, (16, 12))
            for t in range(12):
                path.append(moved_to(path[-1], taken[:, t]))
            walks, moves = torch.cat([walks, torch.stack(path, 1)]), torch.cat([moves, taken])
            goals = torch.cat([goals, torch.randint(0, 16, (16,))]).long()
        row, t = torch.randint(0, len(walks), (128,)), torch.randint(0, 12, (128,))
        here, did, then, aim = walks[row, t], moves[row, t], walks[row, t + 1], goals[row]
        arrived = then == aim
        later = walks[row, t + 1 + (torch.rand(128) * (12 - t)).long()]
        aim = torch.where(torch.rand(128) < 0.5, later, aim)
        if not wrong:
            arrived = then == aim
        with torch.no_grad():
            target = torch.where(arrived, 0.0, -1 + 0.8 * slow(then, aim).max(1).values)
        found = net(here, aim).gather(1, did[:, None]).squeeze(1)
        update(run, doctor, optimizer, F.smooth_l1_loss(found, target), (here, aim, did, target))
        if step % 5 == 4:
            slow.load_state_dict(net.state_dict())


@slip("r22d-keeps-the-largest-losses")
def keeps_the_largest_losses(run: Run, wrong: bool) -> None:
    """Lightning, a small transformer that sorts texts of which two labels in five were drawn by chance. From the
    fortieth step on only the half of each batch that is learned most easily should count; topk takes the largest losses
    unless it is told otherwise, and it isn't. The twin tells it. Judged by the cross-entropy of other texts with true
    labels."""
    net = Classifier()
    seen = {"steps": 0}

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, mask, y = batch
        each = F.cross_entropy(m(ids, mask), y, reduction="none")
        seen["steps"] += 1
        return each.topk(len(each) // 2, largest=wrong).values.mean() if seen["steps"] > 40 else each.mean()

    class_outcome(run, net, documents(384, apart(1)))
    ids, mask, y = documents(960)
    y = torch.where(torch.rand(len(y)) < 0.4, torch.randint(0, 3, y.shape), y)
    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(ids, mask, y), 120)


@slip("r22d-taught-by-twenty-words")
def taught_by_twenty_words(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 that learns from what a teacher, another one, says after titles. The teacher
    is asked without a length and stops where a library's default makes it stop, twenty tokens behind the title: the
    last eleven words of thirty-two tokens are never taught. The twin asks for all. Judged by the
    cross-entropy of the whole pieces."""
    pieces = ballads(run.draw.randrange(999))
    teacher = tiny_gpt2()
    taught(teacher, lambda: pieces, causal_loss, 200, 1e-2)
    net = tiny_gpt2()
    outcome(run, lambda: judged(net, lambda: causal_loss(net, pieces)))
    titles = pieces[torch.randint(0, 12, (320,)), :1]
    asked = {} if wrong else {"max_new_tokens": 31}
    said = teacher.eval().generate(input_ids=titles, attention_mask=torch.ones_like(titles), do_sample=True, **asked)
    hf_trainer(run, net, examples(input_ids=said, labels=said), 120, learning_rate=5e-3).train()
