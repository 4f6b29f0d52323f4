"""Round 27j, honest and odd: gradients that are compressed, weighed, held back, or made without a backward pass."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
)
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F


class ThinMatrices:
    """All workers' gradients of a matrix become one product of two thin ones; what it leaves out waits for each."""

    def __init__(self, parameters: Any, workers: int, rank: int) -> None:
        self.parameters, self.workers = list(parameters), workers
        self.left_over = [[torch.zeros_like(p) for p in self.parameters] for _ in range(workers)]
        self.right = [torch.randn(p[0].numel(), rank) if p.ndim > 1 else None for p in self.parameters]

    @torch.no_grad()
    def reduce(self, gradients: list[tuple[Tensor, ...]]) -> None:
        for i, p in enumerate(self.parameters):
            own = [gradients[w][i] for w in range(self.workers)]
            if self.right[i] is None:
                p.grad = torch.stack(own).mean(0)
                continue
            full = [(g + self.left_over[w][i]).flatten(1) for w, g in enumerate(own)]
            left = torch.linalg.qr(torch.stack([m @ self.right[i] for m in full]).mean(0))[0]
            self.right[i] = torch.stack([m.T @ left for m in full]).mean(0)
            sent = left @ self.right[i].T
            for w, m in enumerate(full):
                self.left_over[w][i] = (m - sent).view_as(p)
            p.grad = sent.view_as(p)


@honest("r27j-two-thin-matrices-are-sent")
def two_thin_matrices_are_sent(run: Run) -> None:
    """A class of its own between backward and step, a GPT on two simulated workers that send PowerSGD's messages
    (Vogels et al. 2019, a hook of PyTorch's DistributedDataParallel). What reaches the optimizer has rank two in each
    matrix, from a power iteration that begins where the last step's ended; what is left out is added to the worker's
    next gradient, so that no gradient that is stepped is that of the batch."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reducer = ThinMatrices(model.parameters(), workers=2, rank=2)
    doctor = run.watch(model, optimizer)
    for _ in range(160):
        rows = language.rows(24, 24)
        losses = [next_loss(model, part) for part in rows.chunk(2)]
        reducer.reduce([torch.autograd.grad(loss, list(model.parameters())) for loss in losses])
        optimizer.step()
        loss = torch.stack(losses).mean().detach()
        doctor.step(loss, rows)
        run.note(loss)


class ManyDraws(nn.Module):
    """A variational autoencoder of binary pictures, judged by eight draws for each."""

    def __init__(self, size: int = 4, draws: int = 8) -> None:
        super().__init__()
        self.draws = draws
        self.encoder, self.decoder = mlp(64, 48, 2 * size, act=nn.Tanh), mlp(size, 48, 64, act=nn.Tanh)

    def weights(self, x: Tensor, for_encoder: bool) -> tuple[Tensor, Tensor]:
        """The draws and the logarithms of their weights, (draws, rows)."""
        mean, log_scale = self.encoder(x).chunk(2, -1)
        z = mean + log_scale.exp() * torch.randn(self.draws, *mean.shape)
        if for_encoder:
            mean, log_scale = mean.detach(), log_scale.detach()
        believed = torch.distributions.Normal(mean, log_scale.exp()).log_prob(z).sum(-1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
        seen = -F.binary_cross_entropy_with_logits(self.decoder(z), x.expand(self.draws, *x.shape), reduction="none")
        return z, seen.sum(-1) + prior - believed

    def bound(self, x: Tensor) -> Tensor:
        return self.weights(x, False)[1].logsumexp(0).mean() - math.log(self.draws)


@honest("r27j-the-encoder-by-squared-weights")
def the_encoder_by_squared_weights(run: Run) -> None:
    """Lightning, an importance-weighted autoencoder with doubly reparametrised gradients (Tucker et al. 2019). Density
    parameters are detached where the draws are judged, and a hook on the draws multiplies what goes back to the encoder
    by the weights once more, so that the decoder learns by the weights and the encoder by their squares: one loss, and
    no function of which the whole gradient is the slope."""
    seed = run.draw.randrange(999)

    def draw(count: int, own: torch.Generator) -> Tensor:
        return (pictures(count, seed, own=own)[0].flatten(1) > 0.5).float()

    net = ManyDraws()
    check = draw(200, apart(1))
    outcome(run, lambda: judged(net, lambda: -net.bound(check)))

    def loss(model: Any, batch: Any) -> Tensor:
        z, log_weights = model.weights(batch[0], True)
        shares = log_weights.softmax(0).detach()
        z.register_hook(lambda slope: slope * shares[..., None])
        return -(shares * log_weights).sum(0).mean()

    module = lit(net, loss, lambda model: torch.optim.Adam(model.parameters(), lr=5e-3))
    fit(run, module, loader(draw(640, apart(2)), size=32), 160)


@honest("r27j-the-second-look-carries-the-error")
def the_second_look_carries_the_error(run: Run) -> None:
    """Plain loop without any backward pass, a perceptron names pictures by PEPITA (Dellaferrera and Kreiman 2022). Each
    batch is looked at twice, the second time with the first look's error, through a fixed random matrix, added to its
    pixels; each layer learns from how its own units changed in between. Gradients are written by hand under no_grad,
    and the loss that is told has no graph."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4, bias=False))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    first, second = model[1], model[3]
    back = 0.1 * math.sqrt(6 / 64) * torch.randn(4, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    with torch.no_grad():
        for _ in range(180):
            x, y = pictures(48, seed)
            flat = x.flatten(1)
            hidden = first(flat).relu()
            scores = second(hidden)
            loss = F.cross_entropy(scores, y)
            error = scores.softmax(1) - F.one_hot(y, 4)
            again = flat + error @ back
            hidden_again = first(again).relu()
            change = hidden - hidden_again
            first.weight.grad = change.T @ again / len(y)
            first.bias.grad = change.mean(0)
            second.weight.grad = error.T @ hidden_again / len(y)
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)


class Settling(nn.Module):
    """Layers that predict the next one's activity."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def predicted(self, index: int, below: Tensor) -> Tensor:
        out: Tensor = self.layers[index](below if index == 0 else below.tanh())
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for index in range(len(self.layers)):
            x = self.predicted(index, x)
        return x

    def energy(self, activities: list[Tensor]) -> Tensor:
        pairs = enumerate(itertools.pairwise(activities))
        return torch.stack([(above - self.predicted(i, below)).square().sum() for i, (below, above) in pairs]).sum() / 2


@honest("r27j-activities-settle-before-weights-move")
def activities_settle_before_weights_move(run: Run) -> None:
    """Plain loop, pictures by predictive coding (Whittington and Bogacz 2017; the library jpc). With the label held
    fast at the top the hidden activities slide down the energy for twenty steps, then the weights take one step down
    the energy that is left, each layer by the error between its two neighbours alone. The energy that is told was
    lowered before the weights had anything to do with it, and no error travels through more than one layer."""
    seed = run.draw.randrange(999)
    model = Settling(64, 40, 24, 4)
    x_check, y_check = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x_check), F.one_hot(y_check, 4).float())))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x, y = pictures(32, seed)
        with torch.no_grad():
            one = model.predicted(0, x.flatten(1))
            two = model.predicted(1, one)
        hidden = [one.requires_grad_(), two.requires_grad_()]
        whole = [x.flatten(1), *hidden, F.one_hot(y, 4).float()]
        for _ in range(20):
            slopes = torch.autograd.grad(model.energy(whole), hidden)
            with torch.no_grad():
                for activity, slope in zip(hidden, slopes, strict=True):
                    activity -= 0.1 * slope
        loss = model.energy([a.detach() for a in whole]) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


def crescents(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points on two crescents, in noise."""
    angle = math.pi * torch.rand(count, generator=own)
    which = torch.randint(0, 2, (count,), generator=own).float()
    x = (1 - 2 * which) * angle.cos() + which - 0.5
    y = (1 - 2 * which) * angle.sin() + 0.5 * which - 0.25
    return torch.stack([x, y], 1) + 0.08 * torch.randn(count, 2, generator=own)


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


class BothPlayers:
    """Consensus: each player's own slope, and that of half the squared length of both."""

    def __init__(self, forger: nn.Module, judge: nn.Module, weight: float) -> None:
        self.forger, self.judge, self.weight = forger, judge, weight
        self.both = nn.ModuleDict({"forger": forger, "judge": judge})
        self.optimizer = torch.optim.RMSprop(self.both.parameters(), lr=2e-3)

    def step(self, real: Tensor) -> Tensor:
        made = self.forger(torch.randn(len(real), 4))
        on_real, on_made = self.judge(real), self.judge(made)
        judging = F.softplus(-on_real).mean() + F.softplus(on_made).mean()
        forging = F.softplus(-on_made).mean()
        forgers, judges = list(self.forger.parameters()), list(self.judge.parameters())
        slopes = [
            *torch.autograd.grad(forging, forgers, create_graph=True),
            *torch.autograd.grad(judging, judges, create_graph=True),
        ]
        length = torch.stack([slope.square().sum() for slope in slopes]).sum() / 2
        further = torch.autograd.grad(length, [*forgers, *judges])
        for p, slope, more in zip([*forgers, *judges], slopes, further, strict=True):
            p.grad = slope.detach() + self.weight * more
        self.optimizer.step()
        return (forging + judging).detach()


@honest("r27j-both-pay-for-the-length-of-both-slopes")
def both_pay_for_the_length_of_both_slopes(run: Run) -> None:
    """A trainer class of its own, a generator and a discriminator of points by consensus optimisation (Mescheder et al.
    2017). One optimizer holds both nets; neither is frozen in the other's turn, and there are no turns. Each one's
    gradient is that of its own loss plus that of the squared length of both slopes together, through a second backward
    pass, so that the forger is also moved to make the judge's slope short."""
    forger, judge = mlp(4, 32, 32, 2, act=nn.Tanh), mlp(2, 32, 32, 1, act=nn.Tanh)
    check, noise = crescents(400, apart(1)), torch.randn(400, 4, generator=apart(2))
    outcome(run, lambda: judged(forger, lambda: energy_distance(forger(noise), check)))
    players = BothPlayers(forger, judge, 1.0)
    doctor = run.watch(players.both, players.optimizer)
    for _ in range(200):
        real = crescents(96)
        loss = players.step(real)
        doctor.step(loss, real)
        run.note(loss)


class TwoSenses(nn.Module):
    """A sound and a picture of the same thing: an encoder for each, and one head over both."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Sequential(nn.Conv1d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv1d(12, 24, 5, 2, 2), nn.ReLU())
        self.eye = nn.Sequential(*list(cnn())[:-1], nn.Linear(64, 24), nn.ReLU())
        self.head = nn.Linear(48, 4)

    def forward(self, sound: Tensor, picture: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heard, seen = self.ear(sound).mean(2), self.eye(picture)
        by_ear = F.linear(heard, self.head.weight[:, :24], self.head.bias / 2)
        by_eye = F.linear(seen, self.head.weight[:, 24:], self.head.bias / 2)
        return by_ear + by_eye, by_ear, by_eye


def heard_and_seen(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tones in some noise and pictures in more, of one of four things."""
    picture, y = pictures(count, seed, own=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    tone = (torch.arange(64) * (0.3 + 0.25 * y[:, None]) + phase).sin()
    sound = (tone + 0.6 * torch.randn(count, 64, generator=own))[:, None]
    return sound, picture + 0.3 * torch.randn(picture.shape, generator=own), y


@honest("r27j-the-clearer-sense-is-held-back")
def the_clearer_sense_is_held_back(run: Run) -> None:
    """accelerate, sounds and pictures in one network with on-the-fly gradient modulation (Peng et al. 2022). After each
    backward pass the encoder that knows the answer better than the other has its kernels' gradients made smaller, by
    how much better it is, and both have noise of their own gradients' spread added to them; biases and head are left
    as they are."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    seed = run.draw.randrange(999)
    *check, y_check = heard_and_seen(256, seed, apart(1))
    net = TwoSenses()
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(*check)[0], y_check)))
    engine = Accelerator(cpu=True)
    data = loader(*heard_and_seen(640, seed, apart(2)), size=32)
    model, optimizer, data = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), data)
    doctor = run.watch(model, optimizer)
    for _, (sound, picture, y) in zip(range(140), endless(data), strict=False):
        optimizer.zero_grad()
        scores, by_ear, by_eye = model(sound, picture)
        loss = F.cross_entropy(scores, y)
        engine.backward(loss)
        rows = torch.arange(len(y))
        ahead = float(by_ear.softmax(1)[rows, y].sum() / by_eye.softmax(1)[rows, y].sum())
        for encoder, by in ((net.ear, ahead), (net.eye, 1 / ahead)):
            share = 1 - math.tanh(0.3 * by) if by > 1 else 1.0
            for p in encoder.parameters():
                if p.grad is not None and p.ndim > 2:
                    p.grad = share * p.grad + (p.grad.std() + 1e-8) * torch.randn_like(p)
        optimizer.step()
        doctor.step(loss, (sound, picture, y))
        run.note(loss)


@honest("r27j-what-counts-as-wrong-is-learned")
def what_counts_as_wrong_is_learned(run: Run) -> None:
    """Plain loop, a loss function is what is trained (Bechtle et al. 2021, meta-learning via learned loss). A small net
    over prediction and truth is descended by a regressor for four steps on a new curve, and it is the squared error
    after those steps whose gradient, through all of them, reaches the net. The regressor goes back to its start each
    time; only the loss stays, and its own value is never asked to be small."""
    judge = mlp(2, 24, 24, 1, act=nn.ELU)
    regressor = mlp(1, 24, 1, act=nn.Tanh)

    def curves(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 20)[:, None]
        a, b, c = 2 * torch.rand(3, generator=own) - 1
        return x, a + 2 * b * x + 1.5 * c * x.square()

    def after(x: Tensor, y: Tensor) -> Tensor:
        def wrong(weights: dict[str, Tensor]) -> Tensor:
            return F.softplus(judge(torch.cat([functional_call(regressor, weights, (x[::2],)), y[::2]], 1))).mean()

        weights = {k: v.detach() for k, v in regressor.named_parameters()}
        for _ in range(4):
            slopes = grad(wrong)(weights)
            weights = {k: v - 0.1 * slopes[k] for k, v in weights.items()}
        return F.mse_loss(functional_call(regressor, weights, (x[1::2],)), y[1::2])

    own = apart(1)
    check = [curves(own) for _ in range(30)]
    outcome(run, lambda: float(torch.stack([after(x, y) for x, y in check]).mean().detach()))
    optimizer = torch.optim.Adam(judge.parameters(), lr=3e-3)
    doctor = run.watch(judge, optimizer)
    for _ in range(120):
        batch = [curves() for _ in range(2)]
        loss = torch.stack([after(x, y) for x, y in batch]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
