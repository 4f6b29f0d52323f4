"""Round 9, part a, changed loops with a mistake in the loss: its formula, its weights, its reduction."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
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
from benchmarks.robustness.loops.round9a_tools import (
    DATA,
    LOSS,
    Denoiser,
    Logits,
    Recurrent,
    gpt2,
    learned,
    noised,
    other_seed,
    plain,
    waves,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r9a-softmax-over-places",
    LOSS,
    (
        r"softmax|loss|logit|distill|teacher|student|probabilit|kl|target|output|gradient",
        r"axis|dim\b|dimension|position|place|sequence|time|vocab|sum|normali|scale|formula|differ|another|changed|other|reduc|magnitude|smaller|larger|not learn|unrelated",
    ),
)
def softmax_over_places(run: Run, changed: bool) -> None:
    """Plain loop, a GPT-2 taught by a larger one. Logits used to be flattened to (words, vocabulary) before the teacher's
    softmax over dim=1; they are not any more, and dim=1 is now the place in the row."""
    words = Language(run.draw.randrange(999), 12)
    words.one = words.one + 2 * torch.randn(12, generator=apart(run.draw.randrange(999)))  # some are frequent
    teacher, student = (Logits(gpt2(12, n_layer=n, bos_token_id=None, eos_token_id=None)) for n in (2, 1))
    learned(teacher, lambda: words.rows(16, 24), lambda rows: next_loss(teacher, rows), 200)
    teacher.eval()
    language_outcome(run, student, words)

    def loss(rows: Tensor) -> Tensor:
        with torch.no_grad():
            right = teacher(rows) / 2.0
        said = student(rows) / 2.0
        if not changed:
            right, said = right.flatten(0, 1), said.flatten(0, 1)
        return F.kl_div(said.log_softmax(dim=-1), right.softmax(dim=1), reduction="sum") * 4.0 / rows.numel()

    plain(run, student, lambda: words.rows(16, 24), loss, 200)


@fault(
    "r9a-weights-of-the-frequent",
    LOSS,
    (
        r"weight|class|loss|label|rare|frequen|imbalanc",
        r"invers|weight|frequen|rare|balanc|count|ignor|reciprocal|formula|scale|smaller|lower|differ|another|changed|major|minor|dominat|reduc",
    ),
)
def weights_of_the_frequent(run: Run, changed: bool) -> None:
    """Lightning, a GRU for three kinds of waves, one of them frequent. Weights of the classes were one over their share;
    in the new code they are the share itself, and the rare classes hardly count. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = waves(600, own), waves(300, own, (1.0, 1.0, 1.0))
    other_seed(changed)
    model = Recurrent()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[0]), check[1])))
    share = train[1].bincount(minlength=3) / len(train[1])
    weights = 3 * share if changed else 1 / (3 * share)
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    told = lit(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weights), rule)
    fit(run, told, loader(*train), 180, gradient_clip_val=1.0)


class Autoencoder(nn.Module):
    """A picture by four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 8), mlp(4, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(z), mean, log_var


def divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()


@fault(
    "r9a-reconstruction-by-pixel",
    LOSS,
    (
        r"loss|reconstruct|kl|diverg|latent|mse|encoder|decoder|reduc",
        r"mean|sum|reduc|scale|64|smaller|collapse|weight|balance|dominat|factor|zero|lower|magnitude|vanish|unused|differ|less|shrunk|divide|posterior",
    ),
)
def reconstruction_by_pixel(run: Run, changed: bool) -> None:
    """Plain loop, a variational autoencoder. The error was summed over pixels; F.mse_loss with its default takes their
    mean, while the divergence is still summed, and the code says nothing of the picture. Another seed."""
    seed = run.draw.randrange(999)
    x, check = (4 * (pictures(n, seed, own=apart(seed + k))[0].flatten(1) - 0.5) for n, k in ((600, 1), (200, 2)))
    other_seed(changed)
    model = Autoencoder()

    def bound(x: Tensor) -> Tensor:
        seen, mean, log_var = model(x)
        return (seen - x).square().sum(1).mean() + divergence(mean, log_var)

    def loss(batch: list[Tensor]) -> Tensor:
        if not changed:
            return bound(batch[0])
        seen, mean, log_var = model(batch[0])
        return F.mse_loss(seen, batch[0]) + divergence(mean, log_var)

    outcome(run, lambda: judged(model, lambda: bound(check)))
    batches = iter([b for _ in range(6) for b in loader(x)])
    plain(run, model, lambda: next(batches), loss, 200, rate=3e-3)


@fault(
    "r9a-alphas-of-one-step",
    DATA,
    (
        r"nois|input|alpha|schedule|diffusion|timestep|data|batch|loss|x_t|signal|enter",
        r"cumul|product|nois|scale|std|varian|less|smaller|lower|cleaner|signal|differ|spread|schedule|easier|harder|higher|range|distribution|changed",
    ),
)
def alphas_of_one_step(run: Run, changed: bool) -> None:
    """Plain loop, a denoising diffusion model. The schedule moved into a class of its own, which hands out 1 - beta of each
    step where the product of all of them up to it is meant: the network sees nearly clean pictures only."""
    seed = run.draw.randrange(999)
    x, check = (4 * (pictures(n, seed, own=apart(seed + k))[0].flatten(1) - 0.5) for n, k in ((640, 1), (200, 2)))
    betas = torch.linspace(1e-3, 0.15, 40)
    products = (1 - betas).cumprod(0)
    kept = 1 - betas if changed else products
    model = Denoiser(40)
    own = apart(7)
    times, noise = torch.randint(0, 40, (200,), generator=own), torch.randn(check.shape, generator=own)
    right = noised(check, noise, times, products)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(right, times), noise)))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        clean = x[torch.randint(0, len(x), (32,))]
        t, noise = torch.randint(0, 40, (32,)), torch.randn(32, 64)
        return noised(clean, noise, t, kept), t, noise

    plain(run, model, batch, lambda b: F.mse_loss(model(b[0], b[1]), b[2]), 200, rate=3e-3)
