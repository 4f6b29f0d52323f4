"""Round 22j, honest and odd: two who learn from or against each other, actors and their rewards, preferences."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, judged, mlp, outcome, train
from benchmarks.robustness.loops.round7b_tools import adam, corridor, taught, update
from torch import Tensor, nn
from torch.nn import functional as F


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """How far two clouds of points are apart; zero for two draws of one distribution."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def bumps(count: int, wide: float, own: torch.Generator | None = None) -> Tensor:
    """Pictures of 8 by 8, flat, of one bright spot somewhere."""
    at = 1 + 5 * torch.rand(count, 1, 2, generator=own)
    grid = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    return (-(grid - at).square().sum(2) / wide).exp()


class Posing:
    """An autoencoder whose encoder also has to pass its codes off as plain noise."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.body = nn.ModuleDict({"encoder": mlp(64, 64, 3), "decoder": nn.Sequential(*mlp(3, 64, 64), nn.Sigmoid())})
        self.judge = mlp(3, 48, 48, 1, act=nn.LeakyReLU)  # type: ignore[arg-type]
        self.to_redraw = torch.optim.Adam(self.body.parameters(), lr=4e-3)
        self.to_judge = torch.optim.Adam(self.judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.to_pose = torch.optim.Adam(self.body["encoder"].parameters(), lr=1e-3, betas=(0.5, 0.999))

    def play(self, draw: Any, steps: int) -> None:
        encoder, decoder = self.body["encoder"], self.body["decoder"]
        redraws = self.run.watch(self.body, self.to_redraw)
        judges = self.run.watch(self.judge, self.to_judge)
        poses = self.run.watch(encoder, self.to_pose)
        yes, no = torch.ones(48, 1), torch.zeros(48, 1)
        for _ in range(steps):
            x = draw()
            update(self.run, redraws, self.to_redraw, F.mse_loss(decoder(encoder(x)), x), x)
            codes = encoder(x)
            real, posed = self.judge(torch.randn(48, 3)), self.judge(codes.detach())
            told_apart = F.binary_cross_entropy_with_logits(real, yes) + F.binary_cross_entropy_with_logits(posed, no)
            update(self.run, judges, self.to_judge, told_apart, (x, codes.detach()))
            pose = F.binary_cross_entropy_with_logits(self.judge(encoder(x)), yes)
            update(self.run, poses, self.to_pose, pose, x)


@honest("r22j-codes-that-pose-as-noise")
def codes_that_pose_as_noise(run: Run) -> None:
    """A class of the user's own, pictures by an adversarial autoencoder (Makhzani et al. 2016). Each batch is used
    three times, by three optimizers with losses of their own, and the encoder's weights are in two of them, with other
    rates and moments: once it is to say enough for a picture to be redrawn, once its codes should be taken for plain
    noise by a judge. The last backward leaves gradients in the judge that its own next step clears."""
    wide = run.draw.uniform(2.5, 4.0)
    game = Posing(run)
    decoder = game.body["decoder"]
    check, codes = bumps(384, wide, apart(901)), torch.randn(384, 3, generator=apart(902))
    outcome(run, lambda: judged(game.body, lambda: energy_distance(decoder(codes), check)))
    game.play(lambda: bumps(48, wide), 180)


def clouds(centres: Tensor, count: int, own: torch.Generator | None = None) -> Tensor:
    """Points of the plane around some centres."""
    at = centres[torch.randint(0, len(centres), (count,), generator=own)]
    return at + 0.15 * torch.randn(count, 2, generator=own)


@honest("r22j-judged-together-with-its-code")
def judged_together_with_its_code(run: Run) -> None:
    """Plain loop, points by a bidirectional GAN (Donahue et al. 2017, ALI, Dumoulin et al. 2017). An encoder and a
    generator are never chained and no reconstruction is in the loss: the judge sees pairs, a point with its code or a
    code with its point, and both players wish it to take the one for the other. Their labels are the judge's turned
    around, for what is real as well as for what is made."""
    centres = 1.5 * torch.randn(4, 2, generator=apart(run.draw.randrange(999))) + 1.0
    maker, reader, judge = mlp(2, 64, 64, 2), mlp(2, 64, 64, 2), mlp(4, 64, 64, 1, act=nn.ELU)
    players = nn.ModuleDict({"maker": maker, "reader": reader})
    check, codes = clouds(centres, 384, apart(901)), torch.randn(384, 2, generator=apart(902))
    outcome(run, lambda: judged(maker, lambda: energy_distance(maker(codes), check)))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999), weight_decay=2e-5)
    of_players = torch.optim.Adam(players.parameters(), lr=2e-3, betas=(0.5, 0.999), weight_decay=2e-5)
    watches_judge, watches_players = run.watch(judge, of_judge), run.watch(players, of_players)
    yes, no = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(180):
        real, code = clouds(centres, 64), torch.randn(64, 2)
        seen, made = torch.cat([real, reader(real)], 1), torch.cat([maker(code), code], 1)
        loss = F.binary_cross_entropy_with_logits(judge(seen.detach()), yes)
        loss = loss + F.binary_cross_entropy_with_logits(judge(made.detach()), no)
        update(run, watches_judge, of_judge, loss, real)
        swapped = F.binary_cross_entropy_with_logits(judge(seen), no)
        swapped = swapped + F.binary_cross_entropy_with_logits(judge(made), yes)
        update(run, watches_players, of_players, swapped, real)


ATOMS = torch.linspace(0, 12, 25)


class Returns(nn.Module):
    """For each action how likely each of some returns is; asked for values, it says what is expected."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 48, 2 * len(ATOMS))

    def chances(self, state: Tensor) -> Tensor:
        out: Tensor = self.net(state).view(-1, 2, len(ATOMS)).log_softmax(2)
        return out

    def forward(self, state: Tensor) -> Tensor:
        return self.chances(state).exp() @ ATOMS


def projected(values: Tensor, chances: Tensor) -> Tensor:
    """Chances of values between the atoms, shared between the two that are next to each."""
    width = float(ATOMS[1] - ATOMS[0])
    share = (1 - (values.clamp(0, 12)[:, :, None] - ATOMS).abs() / width).clamp_min(0)
    return (chances[:, :, None] * share).sum(1)


@honest("r22j-a-return-is-twenty-five-chances")
def a_return_is_twenty_five_chances(run: Run) -> None:
    """Plain loop, distributional Q-learning (C51, Bellemare et al. 2017, as in CleanRL). Returns are classes: for each
    action a softmax over twenty-five values, taught by cross-entropy against what a copy of the network thinks of the
    next place, moved, discounted and projected back onto the same values. The labels are soft and change with the copy
    every fifteen steps, the loss never goes to zero as the reward is uncertain, and each row teaches one action of the
    two."""
    gain = run.draw.uniform(6.0, 8.0)
    model = Returns()
    outcome(run, corridor(model, gain))
    copy_of = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=0.01 / 64)
    doctor = run.watch(model, optimizer)
    places = torch.eye(8)
    for step in range(200):
        at, right = torch.randint(0, 8, (64,)), torch.randint(0, 2, (64,))
        ends = (at == 7) & (right == 1)
        reward = torch.where(ends, gain + 1.5 * torch.randn(64), 0.0)
        then = (at + 2 * right - 1).clamp(0, 7)
        with torch.no_grad():
            best = copy_of(places[then]).argmax(1)
            chances = copy_of.chances(places[then]).exp()[torch.arange(64), best]
            target = projected(reward[:, None] + 0.9 * ~ends[:, None] * ATOMS, chances)
        said = model.chances(places[at])[torch.arange(64), right]
        update(run, doctor, optimizer, -(target * said).sum(1).mean(), (at, right, reward, then))
        if step % 15 == 14:
            copy_of.load_state_dict(model.state_dict())


def pushed(state: Tensor, force: Tensor, drag: float) -> Tensor:
    """A body on a line, a moment later: where it is and how fast."""
    place, speed = state.unbind(-1)
    speed = speed + 0.5 * force.squeeze(-1).tanh() - drag * speed * speed.abs() - 0.1 * place.sin()
    return torch.stack([place + 0.5 * speed, speed], -1)


@honest("r22j-practises-in-its-own-dream")
def practises_in_its_own_dream(run: Run) -> None:
    """Plain loop, an actor that learns in a learned world, as in Dreamer (Hafner et al. 2020) and PILCO's successors.
    Two networks take turns: the world fits what has really happened, the actor goes back through eight dreamt moves,
    through a frozen world, to its own weights; no reward is sampled and no advantage estimated. What has happened is
    kept for ever, grows every ten steps by what the actor does, and its rows stem from actors long gone."""
    drag = run.draw.uniform(0.1, 0.3)
    world, actor = mlp(3, 48, 2, act=nn.ELU), mlp(2, 32, 1, act=nn.Tanh)

    def begins(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.stack([2 * torch.rand(count, generator=own) - 3, torch.zeros(count)], 1)

    def cost() -> Tensor:
        state, total = begins(128, apart(901)), torch.zeros(())
        for _ in range(12):
            state = pushed(state, actor(state), drag)
            total = total + (state[:, 0] - 1).square().mean()
        return total / 12

    outcome(run, lambda: judged(actor, cost))
    of_world, of_actor = adam(world, 5e-3), adam(actor, 4e-3)
    watches_world, watches_actor = run.watch(world, of_world), run.watch(actor, of_actor)
    memory: list[Tensor] = []
    for step in range(120):
        if step % 10 == 0:
            with torch.no_grad():
                state = begins(24)
                for _ in range(10):
                    force = actor(state) + torch.randn(24, 1)
                    then = pushed(state, force, drag)
                    memory.append(torch.cat([state, force, then], 1))
                    state = then
        rows = torch.cat(memory)[torch.randint(0, 24 * len(memory), (128,))]
        guess = rows[:, :2] + world(torch.cat([rows[:, :2], rows[:, 2:3].tanh()], 1))
        update(run, watches_world, of_world, F.mse_loss(guess, rows[:, 3:]), rows)
        world.requires_grad_(False)
        state, dreamt = rows[:, :2], torch.zeros(())
        for k in range(8):
            state = state + world(torch.cat([state, actor(state).tanh()], 1))
            dreamt = dreamt + 0.95**k * (state[:, 0] - 1).square().clamp_max(20).mean()
        update(run, watches_actor, of_actor, dreamt / 8, rows[:, :2])
        world.requires_grad_(True)


class Mate(nn.Module):
    """One network for both players; each remembers what it alone has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(7, 32, batch_first=True), nn.Linear(32, 3)

    def forward(self, seen: Tensor) -> Tensor:
        """(games, players, moves, 3) values of what each has seen and done, (games, players, moves, 7)."""
        out: Tensor = self.head(self.memory(seen.flatten(0, 1))[0])
        return out.unflatten(0, seen.shape[:2])


def games(model: Mate, count: int, greed: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """What was seen, what was done and the team's reward: three moves, of which the last must repeat a player's sign
    of the first, and what the other has is not seen."""
    signs = torch.randint(0, 3, (count, 2), generator=own)
    seen, done = torch.zeros(count, 2, 3, 7), torch.zeros(count, 2, 3, dtype=torch.long)
    seen[:, :, 0, :3] = F.one_hot(signs, 3).float()
    for move in range(3):
        if move:
            seen[:, :, move, 3:6] = F.one_hot(done[:, :, move - 1], 3).float()
        seen[:, 1, move, 6] = 1.0
        with torch.no_grad():
            best = model(seen[:, :, : move + 1])[:, :, -1].argmax(2)
        any_of = torch.randint(0, 3, (count, 2), generator=own)
        done[:, :, move] = torch.where(torch.rand(count, 2, generator=own) < greed, best, any_of)
    return seen, done, (done[:, :, 2] == signs).float().sum(1)


@honest("r22j-only-the-sum-is-rewarded")
def only_the_sum_is_rewarded(run: Run) -> None:
    """Plain loop, two players with memory by value decomposition (VDN, Sunehag et al. 2018, as in PyMARL). There is one
    reward for both, at the end, and nobody is told whose it was: the loss compares the sum of the two players' values
    with it, so that an error of one is laid at the other's door as well, and targets are what a copy of the network
    expects one move later. Both players are the same weights."""
    model = Mate()

    def missed() -> Tensor:
        return 1 - games(model, 256, 1.0, apart(901))[2].mean() / 2

    outcome(run, lambda: judged(model, missed))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.99, eps=1e-5)
    target = copy.deepcopy(model)
    doctor = run.watch(model, optimizer)
    for step in range(180):
        seen, done, reward = games(model, 48, min(0.8, step / 100))
        team = model(seen).gather(3, done[..., None]).squeeze(3).sum(1)
        with torch.no_grad():
            later = target(seen)[:, :, 1:].max(3).values.sum(1)
        aim = torch.cat([later, reward[:, None]], 1)
        optimizer.zero_grad()
        loss = F.mse_loss(team, aim)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        doctor.step(loss, (seen, done, reward))
        run.note(loss)
        if step % 20 == 19:
            target.load_state_dict(model.state_dict())


def demand(count: int, slope: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prices, what was bought, what moved prices alone, and the curve: fashion moves prices and what is bought."""
    moved = 2 * torch.randn(count, 1, generator=own)
    fashion = torch.randn(count, 1, generator=own)
    price = moved + fashion + 0.2 * torch.randn(count, 1, generator=own)
    curve = slope * price.abs() - 0.5 * price
    bought = curve - 2.0 * fashion + 0.2 * torch.randn(count, 1, generator=own)
    return price, bought, moved, curve


@honest("r22j-an-instrument-and-a-critic")
def an_instrument_and_a_critic(run: Run) -> None:
    """Plain loop, a table with hidden causes by an adversarial estimate with instruments (Dikkala et al. 2020, DeepGMM,
    Bennett et al. 2019). The curve is not fitted to the labels, which mislead: a critic looks for where, of the
    instrument alone, what is left can be told, and the curve moves so that it finds nothing. The one climbs and the
    other descends on the same number, which is about zero at the end while the squared error stays large."""
    slope = run.draw.uniform(0.8, 1.2)
    price, bought, moved, _ = demand(2000, slope, apart(run.draw.randrange(999)))
    test, _, _, truth = demand(512, slope, apart(901))
    curve, critic = mlp(1, 32, 1, act=nn.Tanh), mlp(1, 32, 1, act=nn.Tanh)
    outcome(run, lambda: judged(curve, lambda: F.mse_loss(curve(test), truth) / truth.var()))
    of_curve = torch.optim.Adam(curve.parameters(), lr=5e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-2, betas=(0.5, 0.9))
    watches_curve, watches_critic = run.watch(curve, of_curve), run.watch(critic, of_critic)
    for _ in range(200):
        at = torch.randint(0, 2000, (512,))
        left = bought[at] - curve(price[at])
        weight = critic(moved[at])
        found = (weight * left.detach()).mean() - 0.25 * weight.square().mean()
        update(run, watches_critic, of_critic, -found, (moved[at], bought[at]))
        loss = (critic(moved[at]).detach() * left).mean()
        update(run, watches_curve, of_curve, loss, (price[at], bought[at]))


class Denoiser(nn.Module):
    """What noise is in a point of the plane, of which it knows how noisy it is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        waves = [share, (3.14 * share).sin(), (3.14 * share).cos(), (6.28 * share).sin()]
        out: Tensor = self.net(torch.cat([x, *waves], 1))
        return out


def noisy(x: Tensor, share: Tensor, noise: Tensor) -> Tensor:
    return (math.pi / 2 * share).cos() * x + (math.pi / 2 * share).sin() * noise


def drawn(model: nn.Module, noise: Tensor, steps: int = 20) -> Tensor:
    """Points out of noise, without further noise on the way."""
    x = noise
    for k in range(steps, 0, -1):
        now, then = (torch.full((len(x), 1), 0.98 * i / steps) for i in (k, k - 1))
        guess = model(x, now)
        clean = (x - (math.pi / 2 * now).sin() * guess) / (math.pi / 2 * now).cos()
        x = noisy(clean.clamp(-3, 3), then, guess)
    return x


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 2 * math.pi * torch.rand(count, 1, generator=own)
    return torch.cat([angle.cos(), angle.sin()], 1) * 1.5 + 0.1 * torch.randn(count, 2, generator=own)


@honest("r22j-the-preferred-drawing-has-less-error")
def the_preferred_drawing_has_less_error(run: Run) -> None:
    """Plain loop, a diffusion model tuned by preferences (Diffusion-DPO, Wallace et al. 2023, in diffusers' examples).
    There is no likelihood: of two drawings with the same noise, the model's squared error on the preferred one should
    have fallen by more, against a frozen copy, than on the other. The factor is in the hundreds, so that the
    loss begins at ln 2 exactly and soon differs much from batch to batch, and nothing keeps both errors from
    growing."""
    side = run.draw.uniform(0, 2 * math.pi)
    wish = torch.tensor([math.cos(side), math.sin(side)])

    def denoise(model: nn.Module, x: Tensor) -> Tensor:
        share, noise = 0.98 * torch.rand(len(x), 1), torch.randn_like(x)
        return F.mse_loss(model(noisy(x, share, noise), share), noise)

    model = Denoiser()
    taught(model, lambda: ring(128), denoise, 400, 4e-3)
    first = copy.deepcopy(model).requires_grad_(False)
    start = torch.randn(384, 2, generator=apart(901))
    outcome(run, lambda: judged(model, lambda: -(drawn(model, start) @ wish).mean()))
    a, b = ring(800), ring(800)
    better = (torch.rand(800) < (3 * (a - b) @ wish).sigmoid())[:, None]
    won, lost = torch.where(better, a, b), torch.where(better, b, a)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        share, noise = 0.98 * torch.rand(len(batch[0]), 1), torch.randn_like(batch[0])
        more = []
        for x in batch:
            bad, before = ((net(noisy(x, share, noise), share) - noise).square().mean(1) for net in (model, first))
            more.append(bad - before)
        return -F.logsigmoid(-0.5 * 200 * (more[0] - more[1])).mean()

    def batch() -> tuple[Tensor, Tensor]:
        at = torch.randint(0, 800, (64,))
        return won[at], lost[at]

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    train(run, model, optimizer, batch, loss, 150, clip=1.0)
