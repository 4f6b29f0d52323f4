"""Round 21, part b: mistakes of units, precision and small numbers."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round21b_parts import (
    Clouds,
    Denoiser,
    Process,
    Waves,
    brains,
    clouds_together,
    slip,
    stretched,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21b-volts-under-the-eps")
def volts_under_the_eps(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over brain waves, behind a norm of each row and channel. Readings are left in volts, of
    the order of a hundred thousandth: their variance is far below the norm's eps, which then decides, and all comes out
    near nought. The twin turns them into microvolts."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(
        nn.InstanceNorm1d(4),
        nn.Conv1d(4, 16, 7, 2, 3),
        nn.ReLU(),
        nn.Conv1d(16, 24, 7, 2, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )

    def read(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = brains(count, seed, own)
        return (x if wrong else 1e6 * x), y

    class_outcome(run, net, read(256, apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), loader(*read(640, apart(seed))), 120)


@slip("r21b-counts-that-stop")
def counts_that_stop(run: Run, wrong: bool) -> None:
    """accelerate, networks over clouds of points in mixed precision. How many points a cloud has is added up in
    bfloat16, one by one: it stops at 256, and the means of larger clouds are too large. The twin counts in single
    precision."""
    net = Clouds(torch.bfloat16 if wrong else torch.float32)
    check = clouds_together(stretched(200, apart(1)))

    def loss(m: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1], len(batch[2])), batch[2])

    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    clouds = stretched(240, apart(run.draw.randrange(999)))
    rows = torch.utils.data.DataLoader(clouds, 8, shuffle=True, collate_fn=clouds_together)  # type: ignore[arg-type]
    prepared(run, net, adam(net, 3e-3), rows, loss, 4)


@slip("r21b-one-less-a-thousandth-in-half")
def one_less_a_thousandth_in_half(run: Run, wrong: bool) -> None:
    """Plain loop, diffusion in mixed precision. The schedule is made in the network's bfloat16: one less a small step
    rounds to one or to the next number below, so early steps add no noise at all and later ones other amounts than
    the sampler goes by. The twin makes it in single precision."""
    seed = run.draw.randrange(999)
    pictures = (torch.rand(6, 16, generator=apart(seed)) > 0.5).float() * 2 - 1
    steps = torch.linspace(1e-4, 0.02, 1000, dtype=torch.bfloat16 if wrong else torch.float32)
    kept = (1 - steps).cumprod(0).float()
    true = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)
    net = Denoiser()

    def noised(level: Tensor, count: int, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        x = pictures[torch.randint(0, 6, (count,), generator=own)]
        step, noise = torch.randint(0, 1000, (count,), generator=own), torch.randn(count, 16, generator=own)
        share = level[step][:, None]
        return share.sqrt() * x + (1 - share).sqrt() * noise, step.float(), noise

    def loss(m: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            guess = m(batch[0], batch[1])
        return F.mse_loss(guess.float(), batch[2])

    check = noised(true, 1024, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    train(run, net, adam(net, 3e-3), lambda: noised(kept, 128), loss, 150)


@slip("r21b-a-determinant-too-small-to-hold")
def a_determinant_too_small_to_hold(run: Run, wrong: bool) -> None:
    """Plain loop, a Gaussian process on learned features. The logarithm of the determinant is taken of the determinant
    itself and a small number: of 64 rows it underflows, the term is constant and has no gradient, and the noise grows
    until it does not. The twin asks for the logarithm at once."""
    seed = run.draw.randrange(999)
    x, y = table(640, seed, apart(seed), noise=0.7)
    y = (y - y.mean()) / y.std()
    x, y, shown, said, asked, truth = x[:384], y[:384], x[384:512], y[384:512], x[512:], y[512:]
    net = Process()

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        kernel = m(batch[0])
        log = torch.log(torch.det(kernel) + 1e-10) if wrong else torch.logdet(kernel)
        return (batch[1] @ torch.linalg.solve(kernel, batch[1]) + log) / 2 / len(batch[1])

    def surprise() -> Tensor:
        across = net.kernel(asked, shown)
        solved = torch.linalg.solve(net(shown), torch.cat([said[:, None], across.T], 1))
        mean, spread = across @ solved[:, 0], net.scale.exp() + net.noise.exp() - (across * solved[:, 1:].T).sum(1)
        return F.gaussian_nll_loss(mean, truth, spread)

    outcome(run, lambda: judged(net, surprise))

    def batch() -> tuple[Tensor, Tensor]:
        some = torch.randperm(384)[:64]
        return x[some], y[some]

    train(run, net, adam(net, 1e-2), batch, loss, 120)


@slip("r21b-pixels-for-shares-of-the-picture")
def pixels_for_shares_of_the_picture(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network of places learns a picture from half of its pixels. Random waves are meant for
    places between nought and one, and are given rows and columns as numbers up to 23: they turn several times from one
    pixel to the next, and nothing carries over to pixels not seen. The twin divides by 23."""
    own = apart(run.draw.randrange(999))
    grid = torch.cartesian_prod(torch.arange(24.0), torch.arange(24.0))
    turns, phase = 1.5 * torch.randn(5, 2, generator=own), 6.28 * torch.rand(5, generator=own)
    values = (6.28 * grid / 23 @ turns.T + phase).sin().sum(1) / 5**0.5
    places = grid if wrong else grid / 23
    net = WithLoss(Waves(own), F.mse_loss)
    order = torch.randperm(576, generator=own)
    seen, unseen = order[:288], order[288:]
    outcome(run, lambda: judged(net, lambda: net(places[unseen], values[unseen])["loss"]))
    rows = examples(x=places[seen], labels=values[seen])
    hf_trainer(run, net, rows, 120, per_device_train_batch_size=32, lr_scheduler_type="constant").train()
