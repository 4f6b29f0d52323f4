"""Round 12, part a, loops with a mistake in the loss: what the output is compared with, and in which order sums,
minima and means are taken."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, outcome, pictures
from benchmarks.robustness.loops.round9a_tools import accelerated, noised, other_seed
from benchmarks.robustness.loops.round10a_tools import plain, tuned
from benchmarks.robustness.loops.round11a_tools import KEPT, DiT, patches, some
from benchmarks.robustness.loops.round12a_tools import Separator, duets, keyed
from torch import Tensor, nn


def best_pairing(said: Tensor, voices: Tensor) -> Tensor:
    """(2, rows) mean squared errors, of both ways to say which output is which voice; all (rows, 2, time)."""
    return torch.stack([(said - v).square().mean((1, 2)) for v in (voices, voices.flip(1))])


@keyed("r12a-one-pairing-for-the-batch")
def one_pairing_for_the_batch(run: Run, changed: bool) -> None:
    """Plain loop, a transformer that tells two voices apart. The loss takes the better of the two ways to pair outputs
    and voices. The minimum was taken for each row and then the mean; now it is the minimum of two means over the batch,
    so that all rows have to be paired alike. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = duets(960, own), duets(128, own)
    other_seed(changed)
    model = Separator(32)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        errors = best_pairing(model(batch[0]), batch[1])
        return errors.mean(1).min() if changed else errors.min(0).values.mean()

    outcome(run, lambda: judged(model, lambda: best_pairing(model(check[0]), check[1]).min(0).values.mean()))
    plain(run, model, some(*train), loss, 200, rate=3e-3)


def diffusion_loss(
    model: nn.Module, x: Tensor, y: Tensor, velocity: bool = True, own: torch.Generator | None = None
) -> Tensor:
    """x: (rows, 64); the network is asked for the velocity (Salimans and Ho 2022) or for the noise."""
    t, noise = torch.randint(0, 40, (len(x),), generator=own), torch.randn(x.shape, generator=own)
    kept = KEPT[t][:, None]
    target = kept.sqrt() * noise - (1 - kept).sqrt() * x if velocity else noise
    return nn.functional.mse_loss(model(noised(x, noise, t, KEPT), t, y), target)


@keyed("r12a-noise-asked-of-a-velocity-network")
def noise_asked_of_a_velocity_network(run: Run, changed: bool) -> None:
    """accelerate, a diffusion transformer goes on from a checkpoint with paler pictures. The checkpoint says the
    velocity, as its file of settings says; the new tuning script, made after one for another model, compares with the
    noise."""
    seed = run.draw.randrange(999)

    def shots(count: int, own: int, share: float) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=apart(seed + own))
        return share * (2 * patches(x).flatten(1) - 1), y

    model = DiT()
    tuned(model, some(*shots(640, 1, 1.0)), lambda b: diffusion_loss(model, *b), 300)
    check = shots(192, 2, 0.7)
    outcome(run, lambda: judged(model, lambda: diffusion_loss(model, *check, own=apart(903))))
    data = loader(*shots(320, 3, 0.7))
    accelerated(run, model, data, lambda m, b: diffusion_loss(m, *b, velocity=not changed), 3, rate=1e-3)
