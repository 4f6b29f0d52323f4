"""Round 19b, honest and odd: several players, teachers and pupils, policies."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, cnn, judged, mlp, outcome, pictures
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import taught
from torch import Tensor, nn
from torch.nn import functional as F


class Game(nn.Module):
    """A speaker says two symbols about a thing, and a listener points at it among others."""

    def __init__(self) -> None:
        super().__init__()
        self.speaker = mlp(12, 48, 16)
        self.heard, self.seen = mlp(16, 48, 24), nn.Linear(12, 24)

    def point(self, symbols: Tensor, things: Tensor) -> Tensor:
        said = self.heard(F.one_hot(symbols, 8).float().flatten(1))
        return torch.einsum("rd,rcd->rc", said, self.seen(things))

    def forward(self, thing: Tensor, things: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The listener's scores, the log probability of what was said, and how open the choice was."""
        chance = torch.distributions.Categorical(logits=self.speaker(thing).view(-1, 2, 8))
        symbols = chance.sample() if self.training else chance.logits.argmax(2)
        return self.point(symbols, things), chance.log_prob(symbols).sum(1), chance.entropy().sum(1)


def things(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Things with three properties of four values each, five candidates, and which it is."""
    values = torch.randint(0, 4, (count, 5, 3), generator=own)
    candidates = F.one_hot(values, 4).float().flatten(2)
    which = torch.randint(0, 5, (count,), generator=own)
    return candidates[torch.arange(count), which], candidates, which


@honest("r19b-speaker-and-listener")
def speaker_and_listener(run: Run) -> None:
    """Plain loop, a language that two networks invent (Lazaridou et al. 2017; the library EGG). The listener learns by
    cross-entropy; no gradient passes through the symbols, and the speaker learns by the score of what it drew, with the
    listener's loss less its running mean as the cost and a bonus for openness. The sum of all three is one loss, of
    either sign and nearly without meaning, for one optimizer."""
    model = Game()
    check = things(400, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*check[:2])[0], check[2])))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    usual = 1.6
    for _ in range(200):
        batch = things(128)
        scores, said, openness = model(*batch[:2])
        cost = F.cross_entropy(scores, batch[2], reduction="none")
        policy = ((cost.detach() - usual) * said).mean()
        usual = 0.9 * usual + 0.1 * cost.mean().item()
        loss = cost.mean() + policy - 0.05 * openness.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Ahead(torch.optim.Adam):
    """Goes ahead as Adam would without remembering it, and then from where it began by the gradient found there."""

    begun: list[Tensor] | None = None

    @torch.no_grad()
    def look(self) -> None:
        self.begun = []
        for group in self.param_groups:
            for p in group["params"]:
                self.begun.append(p.clone())
                state = self.state.get(p)
                scale = state["exp_avg_sq"].sqrt().add(1e-4) if state else p.grad.abs().add(1e-4)
                p.sub_(group["lr"] * (p.grad / scale).clamp(-3, 3))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        if self.begun is not None:
            weights = [p for group in self.param_groups for p in group["params"]]
            for p, begun in zip(weights, self.begun, strict=True):
                p.copy_(begun)
            self.begun = None
        return super().step(closure)


def columns(count: int, own: torch.Generator | None = None) -> Tensor:
    """Rows of a table of three columns: two groups, bent."""
    side = torch.randint(0, 2, (count, 1), generator=own) * 2.0 - 1
    z = torch.randn(count, 2, generator=own)
    return torch.cat([side + 0.3 * z[:, :1], z[:, 1:], 0.5 * z[:, 1:].square() + 0.5 * side], 1)


def apart_by_energy(a: Tensor, b: Tensor) -> Tensor:
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


@honest("r19b-step-ahead-and-from-behind")
def step_ahead_and_from_behind(run: Run) -> None:
    """Plain loop, rows of a table forged against a judge by extra-gradient Adam (Gidel et al. 2019). Both players first
    go a step ahead, take a gradient there, return to where they were, and step by that one; half of all backward passes
    leave no trace in moments, and the gradient of a step is not the one of the weights that it is added to."""
    forger, judge = mlp(4, 32, 32, 3), mlp(3, 48, 48, 1, act=nn.SiLU)
    check, noise = columns(400, apart(1)), torch.randn(400, 4, generator=apart(2))
    outcome(run, lambda: judged(forger, lambda: apart_by_energy(check, forger(noise))))
    players = (forger, judge)
    optimizers = [Ahead(player.parameters(), lr=4e-3, betas=(0.5, 0.9)) for player in players]
    doctors = [run.watch(player, optimizer) for player, optimizer in zip(players, optimizers, strict=True)]

    def losses(real: Tensor, z: Tensor) -> list[Tensor]:
        """Each player's own, with its gradient written to its own weights alone."""
        forged = forger(z)
        fooled = F.softplus(-judge(forged)).mean()
        caught = F.softplus(judge(forged.detach())).mean() + F.softplus(-judge(real)).mean()
        real = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(judge(real).sum(), real, create_graph=True)
        caught = caught + 0.1 * slope.square().sum(1).mean()
        for player, loss in zip(players, (fooled, caught), strict=True):
            weights = list(player.parameters())
            for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                p.grad = g
        return [fooled.detach(), caught.detach()]

    for _ in range(150):
        losses(columns(96), torch.randn(96, 4))
        for optimizer in optimizers:
            optimizer.look()
        batch, z = columns(96), torch.randn(96, 4)
        told = losses(batch, z)
        for optimizer in optimizers:
            optimizer.step()
        doctors[0].step(told[0], z)
        doctors[1].step(told[1], batch)
        run.note(told[0])


@honest("r19b-pupil-without-any-data")
def pupil_without_any_data(run: Run) -> None:
    """Plain loop, a pupil of a convolutional teacher whose data is gone (Micaelli and Storkey 2019). A generator makes
    pictures of noise on which the two differ most, and the pupil takes five steps for each of its one to agree there.
    Nobody sees a real picture or label; the generator's loss is below zero, and the pupil's need not fall at all."""
    seed = run.draw.randrange(999)
    teacher = cnn()
    taught(teacher, lambda: pictures(48, seed), classify, 80)
    teacher.eval().requires_grad_(False)
    pupil = cnn()
    check = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(pupil, lambda: classify(pupil, check)))
    generator = nn.Sequential(
        *(nn.Linear(16, 256), nn.Unflatten(1, (16, 4, 4)), nn.BatchNorm2d(16), nn.Upsample(scale_factor=2)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3, padding=1)),
        nn.Sigmoid(),
    )
    forges = torch.optim.Adam(generator.parameters(), lr=2e-3)
    learns = torch.optim.Adam(pupil.parameters(), lr=4e-3)
    watches_forger, watches_pupil = run.watch(generator, forges), run.watch(pupil, learns)

    def difference(x: Tensor) -> Tensor:
        return F.kl_div(pupil(x).log_softmax(1), teacher(x).softmax(1), reduction="batchmean")

    for _ in range(25):
        z = torch.randn(64, 16)
        forges.zero_grad()
        loss = -difference(generator(z))
        loss.backward()
        forges.step()
        watches_forger.step(loss, z)
        for _ in range(5):
            with torch.no_grad():
                x = generator(torch.randn(64, 16))
            learns.zero_grad()
            loss = difference(x)
            loss.backward()
            learns.step()
            watches_pupil.step(loss, x)
            run.note(loss)


class Denoiser(nn.Module):
    """What a point was before noise, by the noised point and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2 + 6, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = 1.57 * t[:, None] * torch.tensor([1.0, 2.0, 4.0])
        out: Tensor = self.net(torch.cat([x, angles.sin(), angles.cos()], 1))
        return out

    def moved(self, x: Tensor, t: Tensor, until: Tensor) -> Tensor:
        """A deterministic step from one time to an earlier one."""
        clean = self(x, t)
        a, s = (1.57 * t).cos()[:, None], (1.57 * t).sin()[:, None]
        b, r = (1.57 * until).cos()[:, None], (1.57 * until).sin()[:, None]
        return b * clean + r * (x - a * clean) / s.clamp_min(1e-4)

    def sampled(self, noise: Tensor, steps: int) -> Tensor:
        x = noise
        for k in range(steps, 0, -1):
            x = self.moved(x, torch.full((len(x),), k / steps), torch.full((len(x),), (k - 1) / steps))
        return x


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 3.14 * torch.rand(count, generator=own)
    side = torch.randint(0, 2, (count,), generator=own).float()
    x = torch.stack([angle.cos() + side - 0.5, (1 - 2 * side) * angle.sin() + 0.4 * side - 0.2], 1)
    return 1.2 * x + 0.05 * torch.randn(count, 2, generator=own)


@honest("r19b-half-as-many-steps-again")
def half_as_many_steps_again(run: Run) -> None:
    """Plain loop, a diffusion model distilled to half as many steps, thrice (Salimans and Ho 2022). The pupil begins as
    a copy of its teacher, so its loss is small from the first step; where one stage ends it becomes the teacher of the
    next, with a new optimizer whose rate falls to zero again. The model is the same object all through."""
    model = Denoiser()

    def denoising(net: nn.Module, x: Tensor) -> Tensor:
        t = torch.rand(len(x))
        noised = (1.57 * t).cos()[:, None] * x + (1.57 * t).sin()[:, None] * torch.randn_like(x)
        return (net(noised, t) - x).square().sum(1).mean()

    taught(model, lambda: moons(256), denoising, 600, 3e-3)
    check, noise = moons(400, apart(1)), torch.randn(400, 2, generator=apart(2))
    outcome(run, lambda: judged(model, lambda: apart_by_energy(check, model.sampled(noise, 2))))
    for steps in (8, 4, 2):
        teacher = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 60)
        doctor = run.watch(model, optimizer, scheduler=schedule)
        for _ in range(60):
            x = moons(128)
            t = torch.randint(1, steps + 1, (128,)) / steps
            a, s = (1.57 * t).cos()[:, None], (1.57 * t).sin()[:, None]
            noised = a * x + s * torch.randn_like(x)
            half, end = t - 0.5 / steps, t - 1 / steps
            there = teacher.moved(teacher.moved(noised, t, half), half, end)
            b, r = (1.57 * end).cos()[:, None], (1.57 * end).sin()[:, None]
            target = (there - r / s * noised) / (b - r / s * a)
            weight = (a / s).square().clamp_min(1.0).squeeze(1)
            loss = (weight * (model(noised, t) - target).square().sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (noised, t))
            schedule.step()
            run.note(loss)
        doctor.close()


class Flows(nn.Module):
    """From each place of a grid: one to the right, one up, or stop; and the logarithm of all that flows."""

    def __init__(self, side: int = 6) -> None:
        super().__init__()
        self.side, self.net = side, mlp(2 * side, 64, 64, 3, act=nn.LeakyReLU)
        self.total = nn.Parameter(torch.zeros(()))

    def forward(self, places: Tensor) -> Tensor:
        scores = self.net(F.one_hot(places, self.side).float().flatten(-2))
        closed = torch.cat([places == self.side - 1, torch.zeros_like(places[..., :1], dtype=torch.bool)], -1)
        return scores.masked_fill(closed, -1e9).log_softmax(-1)

    def ends(self) -> Tensor:
        """How likely each place is to be where a path stops."""
        n = self.side
        grid = torch.cartesian_prod(torch.arange(n), torch.arange(n))
        chance = self(grid).exp().view(n, n, 3)
        reached = torch.zeros(n + 1, n + 1)
        reached[0, 0] = 1
        for i in range(n):
            for j in range(n):
                reached[i + 1, j] += reached[i, j] * chance[i, j, 0]
                reached[i, j + 1] += reached[i, j] * chance[i, j, 1]
        return reached[:n, :n] * chance[..., 2]


@honest("r19b-what-flows-in-flows-out")
def what_flows_in_flows_out(run: Run) -> None:
    """Plain loop, a policy that stops at places as often as their reward says, by trajectory balance (Malkin et al.
    2022; the library torchgfn). The loss is the square of a difference of logarithms and large at first; one number,
    the logarithm of the sum of all rewards, has a group with fifty times the rate; some moves are drawn at random."""
    model = Flows()
    own = apart(run.draw.randrange(999))
    reward = 0.05 + 4.0 * (torch.rand(6, 6, generator=own) < 0.2).float()
    reward[5, 5] += 4.0
    truth = reward / reward.sum()
    outcome(run, lambda: judged(model, lambda: (model.ends() - truth).abs().sum()))
    groups = [{"params": model.net.parameters()}, {"params": [model.total], "lr": 0.1}]
    optimizer = torch.optim.Adam(groups, lr=2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(200):
        places, going = torch.zeros(64, 2, dtype=torch.long), torch.ones(64, dtype=torch.bool)
        forward, backward = torch.zeros(64), torch.zeros(64)
        while going.any():
            scores = model(places)
            mixed = 0.95 * scores.detach().exp() + 0.05 * (scores.detach() > -1e8).float() / 3
            moves = torch.multinomial(mixed, 1).squeeze(1)
            forward = forward + going * scores[torch.arange(64), moves]
            going = going & (moves < 2)
            places = places + F.one_hot(moves, 3)[:, :2] * going[:, None]
            backward = backward - going * (places > 0).sum(1).clamp_min(1).float().log()
        gained = reward[places[:, 0], places[:, 1]]
        loss = (model.total + forward - gained.log() - backward).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (places, gained))
        run.note(loss)


class TrustRegion(torch.optim.Optimizer):
    """Natural steps whose length is set by how much a policy may change, halved until it gains; no rate."""

    def __init__(self, parameters: Any, reach: float = 0.01) -> None:
        super().__init__(parameters, {"reach": reach})

    def step(self, surrogate: Callable[[], Tensor], change: Callable[[], Tensor]) -> None:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        reach = self.param_groups[0]["reach"]
        g = nn.utils.parameters_to_vector([p.grad for p in weights])
        slopes = torch.autograd.grad(change(), weights, create_graph=True)
        slope = nn.utils.parameters_to_vector(slopes)

        def curved(v: Tensor) -> Tensor:
            parts = torch.autograd.grad(slope @ v, weights, retain_graph=True)
            return nn.utils.parameters_to_vector(parts) + 0.1 * v

        x, rest = torch.zeros_like(g), g.clone()
        along, size = rest.clone(), rest @ rest
        for _ in range(10):
            bent = curved(along)
            by = size / (along @ bent)
            x, rest = x + by * along, rest - by * bent
            along, size = rest + (rest @ rest) / size * along, rest @ rest
        move = x * (2 * reach / (x @ curved(x))).sqrt()
        start = nn.utils.parameters_to_vector(weights).detach()
        with torch.no_grad():
            before = surrogate()
            for k in range(10):
                nn.utils.vector_to_parameters(start - 0.5**k * move, weights)
                if surrogate() < before and change() < 1.5 * reach:
                    return
            nn.utils.vector_to_parameters(start, weights)


class Pilot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = mlp(2, 24, 24, 1, act=nn.Tanh), nn.Parameter(torch.zeros(1))

    def forward(self, states: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.mean(states).squeeze(-1), self.spread.exp())


class Cart:
    """A cart to be brought to the middle and held there by pushes."""

    def __init__(self, carts: int, own: torch.Generator | None = None) -> None:
        self.states = 2 * torch.rand(carts, 2, generator=own) - 1

    def pushed(self, by: Tensor) -> Tensor:
        place, speed = self.states.unbind(1)
        speed = speed + 0.2 * by.clamp(-2, 2)
        self.states = torch.stack([place + 0.2 * speed, speed], 1)
        return -self.states.square().sum(1)


@honest("r19b-within-a-region-of-trust")
def within_a_region_of_trust(run: Run) -> None:
    """Plain loop, a policy that steers a cart by TRPO (Schulman et al. 2015; the library garage). The optimizer of the
    policy has no rate: ten conjugate gradients and a line search set its weights, at times to what they were. The loss
    is zero before each step but for rounding, as advantages are standardised and ratios one; values learn by Adam."""
    pilot, values = Pilot(), mlp(3, 32, 1, act=nn.Tanh)

    def cost() -> Tensor:
        cart, total = Cart(64, apart(1)), torch.zeros(())
        for _ in range(20):
            total = total - cart.pushed(pilot(cart.states).mean).mean()
        return total

    outcome(run, lambda: judged(pilot, cost))
    moves, learns = TrustRegion(pilot.parameters()), torch.optim.Adam(values.parameters(), lr=5e-3)
    watches_pilot, watches_values = run.watch(pilot, moves), run.watch(values, learns)
    for _ in range(60):
        cart = Cart(32)
        seen, done, gained = [], [], []
        with torch.no_grad():
            for k in range(20):
                act = pilot(cart.states).sample()
                seen.append(torch.cat([cart.states, torch.full((32, 1), k / 20)], 1))
                done.append(act)
                gained.append(cart.pushed(act))
        returns = torch.stack(gained).flip(0).cumsum(0).flip(0).flatten() / 10
        states, acts = torch.cat(seen), torch.cat(done)
        with torch.no_grad():
            better = returns - values(states).squeeze(1)
            better = (better - better.mean()) / better.std()
            old = pilot(states[:, :2])
            said = old.log_prob(acts)

        def surrogate(states: Tensor = states, acts: Tensor = acts, said: Tensor = said, by: Any = better) -> Tensor:
            return -((pilot(states[:, :2]).log_prob(acts) - said).exp() * by).mean()

        def change(states: Tensor = states, old: torch.distributions.Normal = old) -> Tensor:
            return torch.distributions.kl_divergence(old, pilot(states[:, :2])).mean()

        moves.zero_grad()
        loss = surrogate()
        loss.backward()
        moves.step(surrogate, change)
        watches_pilot.step(loss, (states, acts))
        run.note(loss)
        for _ in range(5):
            learns.zero_grad()
            error = F.mse_loss(values(states).squeeze(1), returns)
            error.backward()
            learns.step()
            watches_values.step(error, (states, returns))
