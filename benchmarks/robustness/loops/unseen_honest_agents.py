"""Honest runs of agents: a contextual bandit, REINFORCE, clipped policy updates, Q-learning, groups, evolution."""

import copy

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import quantity
from torch import Tensor, nn
from torch.nn import functional as F


@honest("nh-bandit-with-baseline")
def bandit(run: Run) -> None:
    """A contextual bandit by its policy's gradient: the reward less a running mean, times the log probability.

    The loss is not a distance: its expectation is near zero all along and only its gradient has a meaning. The reward
    rises.
    """
    best = torch.randn(6, 5)
    policy = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    doctor = run.watch(policy, optimizer)
    baseline = 0.0
    for _ in range(150):
        context = torch.randn(64, 6)
        choice = torch.distributions.Categorical(logits=policy(context))
        arm = choice.sample()
        reward = (context @ best).gather(1, arm[:, None]).squeeze(1) + 0.3 * torch.randn(64)
        loss = -((reward - baseline) * choice.log_prob(arm)).mean()
        baseline += 0.1 * (float(reward.mean()) - baseline)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, context)
        run.note(loss)
        quantity(run, reward.mean())


class Corridor:
    """Eight cells, start in the third, 1 at the right end, a step costs a little; an episode is a Python object."""

    def __init__(self) -> None:
        self.at, self.steps = 2, 0

    def move(self, right: bool) -> tuple[float, bool]:
        self.at, self.steps = max(0, self.at + (1 if right else -1)), self.steps + 1
        if self.at == 7:
            return 1.0, True
        return -0.05, self.steps == 20


@honest("nh-returns-to-go")
def reinforce(run: Run) -> None:
    """REINFORCE over whole episodes with returns to go, normalised in a batch: unequal numbers of rows each step.

    Episodes get shorter as the policy gets better, so the batches shrink. The loss has no direction; the return has.
    """
    policy = nn.Sequential(nn.Embedding(8, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    doctor = run.watch(policy, optimizer)
    for _ in range(60):
        places, moves, returns, totals = [], [], [], []
        for _ in range(6):
            corridor, done, rewards = Corridor(), False, []
            while not done:
                places.append(corridor.at)
                with torch.no_grad():
                    right = bool(torch.rand(()) < policy(torch.tensor(corridor.at)).softmax(-1)[1])
                moves.append(int(right))
                reward, done = corridor.move(right)
                rewards.append(reward)
            go = 0.0
            for index in range(len(rewards) - 1, -1, -1):
                go = rewards[index] + 0.95 * go
                rewards[index] = go
            returns += rewards
            totals.append(len(rewards))
        states, actions, value = torch.tensor(places), torch.tensor(moves), torch.tensor(returns)
        advantage = (value - value.mean()) / (value.std() + 1e-6)
        loss = (advantage * F.cross_entropy(policy(states), actions, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, states)
        run.note(loss)
        quantity(run, -sum(totals) / 6)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counting = Counting()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.mean, self.value = nn.Linear(32, 1), nn.Linear(32, 1)
        self.log_spread = nn.Parameter(torch.tensor(-0.5))

    def forward(self, x: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
        hidden = self.body(self.counting(x))
        return torch.distributions.Normal(self.mean(hidden).squeeze(-1), self.log_spread.exp()), self.value(
            hidden
        ).squeeze(-1)


def wind(x: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
    """A point on a line with a speed and a wind; the reward is for standing at zero without pushing hard."""
    place, speed, blow = x.unbind(1)
    speed = 0.8 * speed + 0.3 * push.clamp(-2, 2) + 0.1 * blow
    place = (place + speed).clamp(-3, 3)
    return torch.stack([place, speed, blow], 1), -place.square() - 0.02 * push.square()


@honest("nh-clipped-policy-epochs")
def clipped_policy(run: Run) -> None:
    """PPO: four passes over every rollout with clipped ratios, a value head, an entropy bonus, annealed rate.

    The same rows are learned from several times before new ones come; the policy's part of the loss is about zero in
    each first pass, because the ratios are one there; rows where the clip binds have no gradient.
    """
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3, eps=1e-5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=160)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(40):
        x = torch.randn(24, 3) * torch.tensor([1.5, 0.3, 1.0])
        states, pushes, olds, rewards, values = [], [], [], [], []
        with torch.no_grad():
            for _ in range(10):
                choice, value = model(x)
                push = choice.sample()
                states.append(x)
                pushes.append(push)
                olds.append(choice.log_prob(push))
                values.append(value)
                x, reward = wind(x, push)
                rewards.append(reward)
            ahead, gain, gains = model(x)[1], torch.zeros(24), []
            for reward, value in zip(reversed(rewards), reversed(values), strict=True):
                gain = reward + 0.9 * ahead - value + 0.9 * 0.9 * gain
                ahead = value
                gains.insert(0, gain)
        quantity(run, torch.stack(rewards).mean())
        seen, done, old = torch.cat(states), torch.cat(pushes), torch.cat(olds)
        gained = torch.cat(gains)
        target = gained + torch.cat(values)
        gained = (gained - gained.mean()) / (gained.std() + 1e-8)
        for _ in range(4):
            rows = torch.randperm(len(seen))[:160]
            choice, value = model(seen[rows])
            ratio = (choice.log_prob(done[rows]) - old[rows]).exp()
            better = torch.minimum(ratio * gained[rows], ratio.clamp(0.8, 1.2) * gained[rows])
            loss = -better.mean() + 0.1 * F.mse_loss(value, target[rows]) - 0.003 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            doctor.step(loss, seen[rows])
            run.note(loss)


@honest("nh-q-learning-with-copy")
def q_learning(run: Run) -> None:
    """Double Q-learning in a small grid with replay and a copy for the targets, taken over every 25 steps.

    The loss jumps whenever the copy is renewed and grows while the values do; only the chosen action's output has a
    gradient. What improves is how far a greedy walk still is from the goal.
    """
    size = 5
    model = nn.Sequential(nn.Linear(2 * size, 32), nn.ReLU(), nn.Linear(32, 4))
    copied = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def seen(place: Tensor) -> Tensor:
        return F.one_hot(place, size).flatten(-2).float()

    def walk(place: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        after = (place + moves[action]).clamp(0, size - 1)
        return after, (after == size - 1).all(-1)

    @torch.no_grad()
    def nearness() -> float:
        place = torch.cartesian_prod(torch.arange(size), torch.arange(size))
        for _ in range(2 * size):
            home = (place == size - 1).all(-1, keepdim=True)
            place = torch.where(home, place, walk(place, model(seen(place)).argmax(-1))[0])
        return -float((size - 1 - place).sum(-1).float().mean())

    quantity(run, nearness())
    memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    place = torch.randint(0, size, (8, 2))
    for step in range(250):
        explore = torch.rand(8) < max(0.2, 1 - step / 120)
        with torch.no_grad():
            greedy = model(seen(place)).argmax(-1)
        action = torch.where(explore, torch.randint(0, 4, (8,)), greedy)
        after, home = walk(place, action)
        memory.extend(zip(place, action, after, home, strict=True))
        place = torch.where(home[:, None], torch.randint(0, size - 1, (8, 2)), after)
        rows = [memory[run.draw.randrange(len(memory))] for _ in range(32)]
        was, did, then, ended = (torch.stack(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            next_best = model(seen(then)).argmax(-1, keepdim=True)
            target = ended.float() + 0.9 * (~ended) * copied(seen(then)).gather(1, next_best).squeeze(1)
        value = model(seen(was)).gather(1, did[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            copied.load_state_dict(model.state_dict())
        doctor.step(loss, seen(was))
        run.note(loss)
    quantity(run, nearness())


class Speaker(nn.Module):
    """A GRU that emits digits after a prompt of one digit; its state can be carried along."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.rnn(self.embedding(ids), state)
        return self.head(hidden), state


@honest("nh-groups-relative")
def groups_relative(run: Run) -> None:
    """Group-relative policy training by hand: six answers to each prompt, the reward less the group's mean over its
    spread, and a penalty for leaving the reference.

    Groups that agree give no gradient, which is part of the method. On the first pass the value of the loss is about
    zero whatever the policy; the reward (digits that are higher than the one before) is what rises.
    """
    model = Speaker()
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        prompts = torch.randint(0, 6, (6, 1)).repeat_interleave(6, 0)
        ids, state = prompts, None
        model.eval()
        with torch.no_grad():
            token = prompts
            for _ in range(5):
                logits, state = model(token, state)
                token = torch.multinomial(logits[:, -1].softmax(-1), 1)
                ids = torch.cat([ids, token], 1)
        model.train()
        reward = (ids.diff(dim=1) > 0).float().mean(1)
        grouped = reward.view(6, 6)
        gained = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        new = -F.cross_entropy(model(ids[:, :-1])[0].transpose(1, 2), ids[:, 1:], reduction="none")
        with torch.no_grad():
            before = -F.cross_entropy(reference(ids[:, :-1])[0].transpose(1, 2), ids[:, 1:], reduction="none")
        away = (before - new).exp() - (before - new) - 1
        loss = (-(new - new.detach()).exp() * gained + 0.02 * away).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, ids)
        run.note(loss)
        quantity(run, reward.mean())


@honest("nh-evolution-without-backward")
def evolution(run: Run) -> None:
    """Evolution strategies: the gradient is estimated from mirrored random changes of the weights; nothing is
    differentiated, `.grad` is written by hand and SGD applies it.

    Right where the score has no gradient, here the number of correctly sorted pairs.
    """
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1)).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.8)
    doctor = run.watch(model, optimizer)
    truth = torch.randn(5)

    def wrong(x: Tensor) -> float:
        score, order = model(x).squeeze(1), (x @ truth).tanh() + 0.3 * x[:, 0].square()
        agree = (score[:, None] > score[None]) == (order[:, None] > order[None])
        return 1 - float(agree.float().mean())

    for _ in range(80):
        x = torch.randn(32, 5)
        home = nn.utils.parameters_to_vector(model.parameters()).clone()
        estimate = torch.zeros_like(home)
        total = 0.0
        for _ in range(12):
            change = 0.08 * torch.randn_like(home)
            sides = []
            for sign in (1, -1):
                nn.utils.vector_to_parameters(home + sign * change, model.parameters())
                sides.append(wrong(x))
            estimate += (sides[0] - sides[1]) * change / (2 * 0.08**2) / 12
            total += (sides[0] + sides[1]) / 24
        nn.utils.vector_to_parameters(home, model.parameters())
        at = 0
        for weight in model.parameters():
            weight.grad = estimate[at : at + weight.numel()].view_as(weight).clone()
            at += weight.numel()
        optimizer.step()
        doctor.step(total, x)
        run.note(total)
