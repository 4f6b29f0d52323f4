"""Honest generative runs: diffusion, a critic with a penalty, a VAE, a flow, an energy, a codebook, erased tokens."""

import copy
import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F


def ring(rows: int) -> Tensor:
    angle = 2 * math.pi * torch.rand(rows)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(rows, 2)


class Denoiser(nn.Module):
    """The noise in a point of the plane at a time, with sines of the time as further inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 2.0 ** torch.arange(4))
        self.body = nn.Sequential(nn.Linear(10, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        phase = t[:, None] * self.rates
        out: Tensor = self.body(torch.cat([x, phase.sin(), phase.cos()], 1))
        return out


@honest("nh-diffusion-ring")
def diffusion(run: Run) -> None:
    """Noise prediction in the plane with a weight for each time, sampled and judged with an average of the weights.

    The loss stays far from zero: much of the noise cannot be known; the last layer starts at zero as usual. The
    average is a deep copy which gets no gradients. The noise is drawn from the user's own generator.
    """
    model = Denoiser()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    own = torch.Generator().manual_seed(run.draw.randrange(10**6))
    keep = torch.cos(torch.linspace(0.05, 1.5, 50))  # share of the signal at each time

    @torch.no_grad()
    def likeness() -> float:
        points = torch.randn(256, 2, generator=torch.Generator().manual_seed(5))
        for at in range(49, 0, -1):
            a, b = float(keep[at]), float(keep[at - 1])
            noise = average(points, torch.full((256,), at / 50))
            start = ((points - math.sqrt(1 - a * a) * noise) / a).clamp(-2, 2)
            points = b * start + math.sqrt(1 - b * b) * noise
        return -float((points.norm(dim=1) - 1).abs().mean())

    quantity(run, likeness())
    for step in range(200):
        x = ring(96)
        at = torch.randint(0, 50, (96,), generator=own)
        noise = torch.randn(96, 2, generator=own)
        share = keep[at][:, None]
        guess = model(share * x + (1 - share**2).sqrt() * noise, at / 50)
        loss = (F.mse_loss(guess, noise, reduction="none").mean(1) * (0.5 + share.squeeze(1))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            decay = min(0.98, (1 + step) / (10 + step))
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
        doctor.step(loss, (x, at))
        run.note(loss)
    quantity(run, likeness())


@honest("nh-critic-with-penalty")
def critic_with_penalty(run: Run) -> None:
    """A Wasserstein GAN with gradient penalty: four updates of the critic for one of the generator, negative losses.

    The penalty differentiates the critic's own input gradient (double backward). Neither loss has a floor of zero;
    what improves is the distance of the generated points from the ring. Two doctors, as two optimizers.
    """
    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    for_maker = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    doctor_of_maker, doctor_of_critic = run.watch(maker, for_maker), run.watch(critic, for_critic)

    @torch.no_grad()
    def likeness() -> float:
        points = maker(torch.randn(256, 4, generator=torch.Generator().manual_seed(5)))
        return -float((points.norm(dim=1) - 1).abs().mean()) - float(points.mean(0).norm())

    quantity(run, likeness())
    for _ in range(120):
        for _ in range(4):
            real = ring(48)
            made = maker(torch.randn(48, 4)).detach()
            share = torch.rand(48, 1)
            between = (share * real + (1 - share) * made).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = 2.0 * (slope.norm(dim=1) - 1).square().mean()
            loss = critic(made).mean() - critic(real).mean() + penalty
            for_critic.zero_grad()
            loss.backward()
            for_critic.step()
            doctor_of_critic.step(loss, real)
        noise = torch.randn(48, 4)
        against = -critic(maker(noise)).mean()
        for_maker.zero_grad()
        against.backward()
        for_maker.step()
        doctor_of_maker.step(against, noise)
        run.note(loss)
    quantity(run, likeness())


class Latent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counting = Counting()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.GELU(), nn.Linear(48, 16))
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 144))
        self.last_latent: Tensor | None = None  # kept for the plots

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encode(self.counting(x)).chunk(2, -1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean) if self.training else mean
        self.last_latent = z.detach()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return self.decode(z), divergence


@honest("nh-vae-with-growing-weight")
def vae(run: Run) -> None:
    """A VAE whose divergence term has weight 0 at first and grows to 1: the loss stalls or rises then, deliberately.

    With the full weight from the start the latent would be ignored; judged by the bound at full weight.
    """
    model = Latent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, shapes(32, noise=0.1)[0], lambda m, b: (m(b)[0] - b.flatten(1)).square().sum(1).mean())
    for step in range(200):
        weight = min(1.0, max(0.0, (step - 60) / 100))
        x, _ = shapes(32, noise=0.1)
        rebuilt, divergence = model(x)
        error = 10 * (rebuilt - x.flatten(1)).square().sum(1).mean()
        loss = error + weight * divergence.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
        if step % 199 == 0:
            quantity(run, -float(error.detach() + divergence.mean().detach()))


class Stretch(nn.Module):
    """A scale and a shift for each coordinate, set from the first batch seen and learned from then on (ActNorm)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        self.seen = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.seen:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-x.std(0).log())
            self.seen = True
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Coupling(nn.Module):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.net[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x[:, [self.first]], x[:, [1 - self.first]]
        scale, shift = self.net(kept).chunk(2, -1)
        moved = moved * scale.tanh().exp() + shift
        parts = (kept, moved) if self.first == 0 else (moved, kept)
        return torch.cat(parts, 1), scale.tanh().squeeze(1)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(layer for i in range(6) for layer in (Stretch(), Coupling(i % 2)))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for part in self.parts:
            x, change = part(x)
            volume = volume + change
        return volume - 0.5 * x.square().sum(1) - math.log(2 * math.pi)


@honest("nh-flow-set-by-first-batch")
def flow(run: Run) -> None:
    """A coupling flow whose scales are set in the first forward pass, from its batch, and learned afterwards.

    That is how Glow starts; weights change in forward there, once. Its loss is minus a log density and gets negative.
    """
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    doctor = run.watch(model, optimizer)

    def moons(rows: int) -> Tensor:
        side = torch.randint(0, 2, (rows,))
        angle = math.pi * torch.rand(rows)
        x = torch.stack([angle.cos() + side, (1 - 2.0 * side) * angle.sin() + 0.5 * side], 1)
        return 0.3 * (x + 0.05 * torch.randn(rows, 2))

    for _ in range(150):
        x = moons(96)
        loss = -model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


@honest("nh-energy-with-replayed-samples")
def energy(run: Run) -> None:
    """An energy model: the data's energy less that of samples made by Langevin steps from a replay buffer.

    The loss hovers around zero, since good samples have the data's energy; the weights are frozen while sampling
    because only the samples' gradient is wanted there. The swish net is small, energies are kept small by a penalty.
    """
    model = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    doctor = run.watch(model, optimizer)
    buffer = 2 * torch.rand(400, 2) - 1

    def roughness() -> float:
        """How much lower the energy is on the ring than at the centre and outside."""
        with torch.no_grad():
            around = torch.cat([0.2 * torch.randn(64, 2), 2.2 * ring(64)])
            return float(model(around).mean() - model(ring(64)).mean())

    quantity(run, roughness())
    for _ in range(200):
        chosen = torch.randint(0, len(buffer), (64,))
        buffer[chosen[:4]] = 4 * torch.rand(4, 2) - 2
        samples = buffer[chosen].clone()
        model.requires_grad_(False)
        for _ in range(12):
            samples.requires_grad_()
            (slope,) = torch.autograd.grad(model(samples).sum(), samples)
            samples = (samples - 0.05 * slope.clamp(-3, 3) + 0.03 * torch.randn_like(samples)).detach().clamp(-2.5, 2.5)
        model.requires_grad_(True)
        buffer[chosen] = samples
        real = ring(64)
        low, high = model(real), model(samples)
        loss = low.mean() - high.mean() + 0.05 * (low.square().mean() + high.square().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, real)
        run.note(loss)
    quantity(run, roughness())
