"""Round 26h, honest and unusual: updates, stages and what is tuned."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.training import next_token
from torch import Tensor, nn
from torch.nn import functional as F


class AggregatedMomentum(torch.optim.Optimizer):
    """Several velocities for each weight, each with its own damping; the step is their mean."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, ...] = (0.0, 0.9, 0.99)) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                kept = self.state[weight]
                if not kept:
                    kept["velocities"] = [torch.zeros_like(weight) for _ in group["betas"]]
                for beta, velocity in zip(group["betas"], kept["velocities"], strict=True):
                    velocity.mul_(beta).sub_(weight.grad)
                    weight.add_(velocity, alpha=group["lr"] / len(group["betas"]))


@honest("r26h-three-memories-and-one-step")
def three_memories_and_one_step(run: Run) -> None:
    """transformers' Trainer with an optimizer of one's own, a language model of a GRU by aggregated momentum (Lucas et
    al. 2019). Three velocities are kept for each weight, one of which forgets at once and one of which remembers a
    hundred steps and would alone be unstable at this rate; each weight is moved by their mean. The rate is that of
    plain steps and not of Adam, a tenth, and there is no weight decay."""
    language = Language(run.draw.randrange(999))
    net = Reader(12)
    language_outcome(run, net, language)
    rows = language.rows(400, 25, apart(2))
    optimizer = AggregatedMomentum(net.parameters(), lr=0.1)
    more = {"optimizers": (optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 140))}
    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, WithLoss(net, next_token), data, 140, more=more, max_grad_norm=1.0).train()


def prices(count: int, own: torch.Generator | None = None, days: int = 6) -> Tensor:
    """(count, days, 3) prices that begin at one, with a dividend above the interest."""
    moves = 0.25 * torch.randn(count, days - 1, 3, generator=own) - 0.05 - 0.5 * 0.25**2
    return F.pad(moves.cumsum(1), (0, 0, 1, 0)).exp()


def paid(now: Tensor, day: int) -> Tensor:
    return 0.99**day * (now.amax(-1) - 1).clamp_min(0)


class Decision(nn.Module):
    """Whether to stop on one day, as a number below or above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, 1)

    def forward(self, now: Tensor, gain: Tensor) -> Tensor:
        out: Tensor = self.head(self.net(torch.cat([now, gain[:, None]], 1))).squeeze(1)
        return out


def earned(decisions: nn.ModuleList, paths: Tensor, first: int) -> Tensor:
    """What each path pays if from day `first` on the nets decide."""
    last = paths.shape[1] - 1
    value = paid(paths[:, last], last)
    for day in range(last - 1, first - 1, -1):
        gain = paid(paths[:, day], day)
        stops = (decisions[day](paths[:, day], gain) > 0) & (gain > 0)
        value = torch.where(stops, gain, value)
    return value


@honest("r26h-from-the-last-day-backwards")
def from_the_last_day_backwards(run: Run) -> None:
    """Plain loops one after another, when to exercise an option (deep optimal stopping, Becker et al. 2019). Each day
    has a net and an optimizer of its own, and the last day but one is learned first; what is paid later comes from the
    nets that are done, which decide by a hard yes or no, without a gradient and in evaluation mode, while the day that
    learns decides by shares. The loss is minus money: below zero, without a floor that is known. Paths are drawn anew
    in each step."""
    decisions = nn.ModuleList(Decision() for _ in range(5))
    check = prices(4096, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(decisions, lambda: -earned(decisions, check, 1).mean()))
    for day in range(4, 0, -1):
        net = decisions[day]
        optimizer = adam(net, 1e-2)
        doctor = run.watch(net, optimizer)
        for _ in range(40):
            paths = prices(512)
            with torch.no_grad():
                later = earned(decisions, paths, day + 1)
            gain = paid(paths[:, day], day)
            share = net(paths[:, day], gain).sigmoid()
            loss = -(share * gain + (1 - share) * later).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, paths)
            run.note(loss)
        net.eval()


class Describing(nn.Module):
    """A picture's features through one matrix, as the word in front of a caption; eye and reader are as they were."""

    def __init__(self, eye: nn.Module, reader: Decoder) -> None:
        super().__init__()
        self.eye, self.reader, self.link = eye, reader, nn.Linear(64, 32)
        self.eye.requires_grad_(False)
        self.reader.requires_grad_(False)

    def train(self, mode: bool = True) -> "Describing":
        super().train(mode)
        self.eye.eval()
        return self

    def forward(self, picture: Tensor, caption: Tensor) -> Tensor:
        seen = self.link(self.eye(picture))[:, None]
        x = torch.cat([seen, self.reader.tokens(caption[:, :-1])], 1)
        x = x + self.reader.places(torch.arange(x.shape[1]))
        for block in self.reader.blocks:
            x = block(x)
        out: Tensor = self.reader.head(self.reader.norm(x))
        return out


@honest("r26h-an-eye-a-reader-and-one-matrix")
def an_eye_a_reader_and_one_matrix(run: Run) -> None:
    """accelerate, pictures told by a language model that has never seen any (LiMBeR, Merullo et al. 2023; Tsimpoukelli
    et al. 2021). A trained eye and a trained small GPT stay as they are, and a single matrix between them learns; the
    gradient passes through the whole reader to come to it. What the matrix says is no word of the vocabulary, and
    nothing holds it near one. The eye stays in evaluation mode."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    lines = torch.randint(4, 16, (4, 6), generator=own)

    def captions(y: Tensor, own: torch.Generator | None = None) -> Tensor:
        spoilt = torch.rand(len(y), 6, generator=own) < 0.15
        return torch.where(spoilt, torch.randint(4, 16, (len(y), 6), generator=own), lines[y])

    def titled() -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 4, (32,))
        rows = torch.cat([y[:, None], captions(y)], 1)
        return rows[:, :-1], rows[:, 1:]

    eye, reader = cnn(), Decoder(16)
    taught(eye, lambda: pictures(32, seed), classify, 80)
    taught(reader, titled, lambda m, b: next_token(m(b[0]), b[1]), 150)
    net = Describing(nn.Sequential(*list(eye)[:-1]), reader)
    net.train()
    x, y = pictures(160, seed, own=apart(1))
    check = captions(y, apart(3))
    outcome(run, lambda: judged(net, lambda: next_token(net(x, check), check)))
    x_train, y_train = pictures(320, seed, own=apart(2))
    data = loader(x_train, captions(y_train, apart(4)), size=32)
    optimizer = torch.optim.AdamW(net.link.parameters(), lr=5e-3)
    prepared(run, net, optimizer, data, lambda m, b: next_token(m(b[0], b[1]), b[1]), 10)


class Seeking(nn.Module):
    """A reader as it is, in which one layer's output at the subject's place is a vector to be found."""

    def __init__(self, reader: Decoder, place: int, start: Tensor) -> None:
        super().__init__()
        self.reader, self.place = reader, place
        self.vector = nn.Parameter(start.clone())
        self.start = start
        self.reader.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        def put(module: nn.Module, given: Any, out: Tensor) -> Tensor:
            here = torch.arange(out.shape[1])[:, None] == self.place
            return torch.where(here, self.vector, out)

        hook = self.reader.blocks[0].feed[-1].register_forward_hook(put)
        try:
            out: Tensor = self.reader(rows)[:, -1]
        finally:
            hook.remove()
        return out


def keys_of(reader: Decoder, rows: Tensor) -> Tensor:
    """What the first block's last matrix reads, at each place."""
    kept: list[Tensor] = []
    hook = reader.blocks[0].feed[-1].register_forward_hook(lambda module, given, out: kept.append(given[0]))
    with torch.no_grad():
        reader(rows)
    hook.remove()
    return kept[0]


@honest("r26h-a-vector-is-found-and-then-written-in")
def a_vector_is_found_and_then_written_in(run: Run) -> None:
    """Plain loops, facts changed in a small GPT by rank-one editing (ROME, Meng et al. 2022). Nothing of the model
    learns by descent: for each new fact one vector, in the place of what a layer says at the subject, is sought for a
    few steps at a rate of a tenth on one subject under many beginnings; then it is written into the layer's matrix by a
    formula. Each search has a label that the model holds to be wrong, and begins where the model is as it was."""
    own = apart(run.draw.randrange(999))
    objects = torch.randint(14, 20, (12, 2), generator=own)

    def asked(subject: Tensor, relation: Tensor, own: torch.Generator | None = None) -> Tensor:
        begin = torch.randint(20, 26, (len(subject), 2), generator=own)
        return torch.cat([begin, subject[:, None], relation[:, None] + 12], 1)

    def facts() -> tuple[Tensor, Tensor]:
        subject, relation = torch.randint(0, 12, (48,)), torch.randint(0, 2, (48,))
        return asked(subject, relation), objects[subject, relation]

    def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0])[:, -1], batch[1])

    reader = Decoder(26, layers=2, length=4)
    taught(reader, facts, error, 250)
    changed = [0, 1, 2]
    wanted = objects.clone()
    wanted[:3, 0] = 14 + (objects[:3, 0] - 14 + 1 + torch.randint(0, 5, (3,), generator=own)) % 6
    subjects, relations = torch.arange(12).repeat(16), torch.zeros(192, dtype=torch.long)
    check = asked(subjects, relations, apart(1)), wanted[subjects, relations]
    outcome(run, lambda: judged(reader, lambda: error(reader, check)))
    matrix: Any = reader.blocks[0].feed[-1]  # type: ignore[index, union-attr]
    common = keys_of(reader, torch.cat([facts()[0] for _ in range(8)])).flatten(0, 1)
    spread = common.T @ common / len(common) + 1e-3 * torch.eye(common.shape[1])
    for subject in changed:
        each = torch.full((24,), subject)
        key = keys_of(reader, asked(each, each * 0))[:, 2].mean(0)
        seeking = Seeking(reader, 2, matrix(key).detach())
        optimizer = torch.optim.Adam([seeking.vector], lr=0.1)
        doctor = run.watch(seeking, optimizer)
        for _ in range(30):
            batch = asked(each, each * 0), wanted[each, 0]
            moved = (seeking.vector - seeking.start).square().sum() / seeking.start.square().sum()
            loss = F.cross_entropy(seeking(batch[0]), batch[1]) + 0.02 * moved
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
        with torch.no_grad():
            along = torch.linalg.solve(spread, key)
            matrix.weight += torch.outer(seeking.vector - seeking.start, along) / (along @ key)


@honest("r26h-paid-for-what-it-is-sure-of")
def paid_for_what_it_is_sure_of(run: Run) -> None:
    """Plain loop, action values in a corridor by Munchausen's DQN (Vieillard et al. 2020). To each reward nine tenths
    of the policy's own scaled log probability are added, cut off at minus one, so that the targets hold rewards that no
    world has paid; the next state's value is soft, the values belong to no discounted sum, and the copy that they are
    computed from is replaced every tenth step. Transitions come from steps by lot and not from the policy."""
    size, heat = 8, 0.05
    model = mlp(size, 32, 2)
    copied = copy.deepcopy(model).requires_grad_(False)
    states = torch.eye(size)
    goal = run.draw.choice((0, 1))  # which of the actions leads to the end
    outcome(run, lambda: judged(model, lambda: 1 - (model(states) / heat).softmax(1)[:, goal].mean()))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(200):
        place, action = torch.randint(0, size, (64,)), torch.randint(0, 2, (64,))
        after = (place + torch.where(action == goal, 1, -1)).clamp_min(0)
        ended = after == size
        with torch.no_grad():
            sure = (copied(states[place]) / heat).log_softmax(1).gather(1, action[:, None]).squeeze(1)
            then = copied(states[after.clamp_max(size - 1)])
            log_policy = (then / heat).log_softmax(1)
            soft = (log_policy.exp() * (then - heat * log_policy)).sum(1)
            target = ended.float() + 0.9 * (heat * sure).clamp(-1, 0) + 0.9 * soft * ~ended
        said = model(states[place]).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(said, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (states[place], action, target))
        run.note(loss)
        if step % 10 == 9:
            copied.load_state_dict(model.state_dict())
