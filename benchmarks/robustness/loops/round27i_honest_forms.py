"""Round 27i, honest and odd: models whose form is a method of its own."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, examples, hf_trainer, judged, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


class Shrinking(nn.Module):
    """Four steps of a method for sparse sums as four layers, begun as the method itself."""

    def __init__(self, waves: Tensor) -> None:
        super().__init__()
        steep = float(torch.linalg.matrix_norm(waves, 2) ** 2)
        seen, kept = waves.T / steep, torch.eye(waves.shape[1]) - waves.T @ waves / steep
        self.seen = nn.ParameterList(nn.Parameter(seen.clone()) for _ in range(4))
        self.kept = nn.ParameterList(nn.Parameter(kept.clone()) for _ in range(4))
        self.thresholds = nn.Parameter(torch.full((4,), 0.1))

    def forward(self, echo: Tensor) -> Tensor:
        code = echo.new_zeros(len(echo), self.kept[0].shape[0])
        for seen, kept, threshold in zip(self.seen, self.kept, self.thresholds, strict=True):
            code = echo @ seen.T + code @ kept.T
            code = code.sign() * (code.abs() - threshold).relu()
        return code


@honest("r27i-four-steps-of-a-method-are-four-layers")
def four_steps_of_a_method_are_four_layers(run: Run) -> None:
    """Plain loop, echoes of few layers of rock by a learned method of shrinking (LISTA, Gregor and LeCun 2010, Chen et
    al. 2018). Weights are made of one known matrix at first, equal in all layers, and not at random; there are no
    biases but one threshold for each layer, most outputs are nought exactly and so are nine labels in ten, and at the
    start the network is already a sound if slow method."""
    own = apart(run.draw.randrange(999))
    waves = torch.randn(24, 48, generator=own)
    waves = waves / waves.norm(dim=0)

    def echoes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        layers = torch.randn(count, 48, generator=own) * (torch.rand(count, 48, generator=own) < 0.08)
        return layers @ waves.T + 0.02 * torch.randn(count, 24, generator=own), layers

    new, truth = echoes(512, own)
    model = Shrinking(waves)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), truth) / truth.square().mean()))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().sum(1).mean()

    train(run, model, adam(model, 2e-3), lambda: echoes(64), loss, 200)


class Turning(nn.Module):
    """A pendulum in other coordinates, in which each step is a turn by an angle that their length decides."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = mlp(2, 48, 2, act=nn.Tanh), mlp(2, 48, 2, act=nn.Tanh)
        self.pace = mlp(1, 16, 2, act=nn.Tanh)

    def onward(self, at: Tensor) -> Tensor:
        angle, growth = (0.2 * self.pace(at.square().sum(-1, keepdim=True))).unbind(-1)
        c, s, g = angle.cos(), angle.sin(), growth.exp()
        return torch.stack([g * (c * at[..., 0] - s * at[..., 1]), g * (s * at[..., 0] + c * at[..., 1])], -1)

    def forward(self, start: Tensor, steps: int) -> Tensor:
        """(rows, steps + 1, 2) inner coordinates from the start on."""
        inner = [self.enter(start)]
        for _ in range(steps):
            inner.append(self.onward(inner[-1]))
        return torch.stack(inner, 1)


def pendulums(count: int, own: torch.Generator) -> Tensor:
    """(count, 21, 2) angles and speeds."""
    state = torch.stack([4 * torch.rand(count, generator=own) - 2, 2 * torch.rand(count, generator=own) - 1], 1)
    rows = [state]
    for _ in range(20):
        for _ in range(10):
            speed = state[:, 1] - 0.02 * state[:, 0].sin()
            state = torch.stack([state[:, 0] + 0.02 * speed, speed], 1)
        rows.append(state)
    return torch.stack(rows, 1)


class Straightening:
    """The laboratory's own trainer: three errors at once, and at first the coordinates alone."""

    def __init__(self, run: Run, model: Turning, rows: Tensor) -> None:
        self.run, self.model, self.data = run, model, loader(rows, size=32)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        self.doctor, self.done = run.watch(model, self.optimizer), 0

    def loss(self, rows: Tensor) -> Tensor:
        both = F.mse_loss(self.model.leave(self.model.enter(rows)), rows)
        if self.done < 20:
            return both
        inner = self.model(rows[:, 0], 20)
        foretold = self.model.leave(inner)
        worst = (foretold[:, 1] - rows[:, 1]).abs().amax()
        return both + F.mse_loss(foretold, rows) + F.mse_loss(inner, self.model.enter(rows)) + 1e-4 * worst

    def epoch(self) -> None:
        for (rows,) in self.data:
            update(self.run, self.doctor, self.optimizer, self.loss(rows), rows)
            self.done += 1


@honest("r27i-nothing-but-turns-inside")
def nothing_but_turns_inside(run: Run) -> None:
    """Own class, a pendulum made linear inside (Koopman autoencoder, Lusch, Kutz and Brunton 2018). For twenty steps
    the loss knows the coordinates alone, and the part that says how fast they turn has no gradient; then it grows by
    three errors at once, of which one compares two outputs of the network that both may move, and one is the single
    worst entry of the batch. Twenty steps in time are twenty uses of one angle."""
    own = apart(run.draw.randrange(999))
    rows, new = pendulums(256, own), pendulums(128, own)
    model = Turning()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model.leave(model(new[:, 0], 20)), new) / new.var()))
    straightening = Straightening(run, model, rows)
    for _ in range(22):
        straightening.epoch()


class Minerals(nn.Module):
    """A pixel's spectrum to shares of four minerals, and back by a matrix whose columns are the minerals' spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Sequential(mlp(40, 24, 12, act=nn.LeakyReLU), nn.BatchNorm1d(12), nn.Linear(12, 4))
        self.spectra = nn.Linear(4, 40, bias=False)
        nn.init.uniform_(self.spectra.weight, 0.2, 0.6)

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.spectra((3 * self.shares(pixels)).softmax(1))
        return out


def angle(said: Tensor, pixels: Tensor) -> Tensor:
    return F.cosine_similarity(said, pixels, dim=1).clamp(-1 + 1e-6, 1 - 1e-6).arccos().mean()


@honest("r27i-the-last-matrix-is-what-was-wanted")
def the_last_matrix_is_what_was_wanted(run: Run) -> None:
    """Plain loop, minerals in spectra from the air by an autoencoder (Palsson et al. 2018). The input is the label;
    the last layer has no bias and is cut off at nought after each update, since its columns are read as spectra; what
    stands before it is a softmax of four, and the loss is an angle in radians, to which brightness is nothing, so that
    outputs may be of any scale."""
    own = apart(run.draw.randrange(999))
    grid = torch.linspace(0, 1, 40)
    dips = torch.rand(4, 3, generator=own)[..., None]
    truth = 0.7 - (0.25 * (-((grid - dips) / 0.08).square()).exp()).sum(1)
    kept = torch.rand(900, 4, generator=own).log().neg() ** 1.5
    pixels = kept / kept.sum(1, keepdim=True) @ truth * (0.6 + 0.6 * torch.rand(900, 1, generator=own))
    pixels = pixels + 0.005 * torch.randn(900, 40, generator=own)
    rows, new = pixels[:600], pixels[600:]
    model = Minerals()
    outcome(run, lambda: judged(model, lambda: angle(model(new), new)))
    optimizer = adam(model, 5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        batch = rows[torch.randint(0, 600, (40,))]
        loss = angle(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.spectra.weight.clamp_(min=0)
        doctor.step(loss, batch)
        run.note(loss)


class Pen(nn.Module):
    """After each movement of a pen, a mixture of four Gaussians for the next and three scores: on, lifted, done."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(5, 48, batch_first=True), nn.Linear(48, 4 * 6 + 3)

    def forward(self, strokes: Tensor) -> tuple[Tensor, Tensor]:
        mixture, pen = self.head(self.core(strokes)[0]).split([24, 3], 2)
        return mixture.unflatten(2, (6, 4)), pen


def drawings(count: int, own: torch.Generator) -> Tensor:
    """(count, 26, 5) movements and three marks of the pen; a first row that begins, behind the end only ends."""
    rows = torch.zeros(count, 26, 5)
    rows[..., 4] = 1
    rows[:, 0] = torch.tensor([0.0, 0, 1, 0, 0])
    kinds = torch.randint(0, 3, (count,), generator=own).tolist()
    for row, kind, size in zip(rows, kinds, torch.randint(10, 24, (count,), generator=own).tolist(), strict=True):
        t = torch.arange(size)
        turn = 6.283 / size * t if kind == 0 else torch.where(t // 3 % 2 == 0, 0.8, -0.8)
        turn = 1.571 * (4 * t // size) if kind == 2 else turn
        row[1 : size + 1, 0], row[1 : size + 1, 1] = turn.cos(), turn.sin()
        row[1 : size + 1, :2] += 0.1 * torch.randn(size, 2, generator=own)
        row[1 : size + 1, 2:] = torch.tensor([1.0, 0, 0])
        row[size // 2, 2:] = torch.tensor([0.0, 1, 0])
    return rows


def pen_loss(model: nn.Module, batch: Any) -> Tensor:
    rows = batch[0]
    mixture, pen = model(rows[:, :-1])
    scores, x, y, log_wide, log_high, tilt = mixture.unbind(2)
    tilt = 0.95 * tilt.tanh()
    a = (rows[:, 1:, :1] - x) / log_wide.exp()
    b = (rows[:, 1:, 1:2] - y) / log_high.exp()
    left = 1 - tilt.square()
    each = -(a.square() + b.square() - 2 * tilt * a * b) / (2 * left) - log_wide - log_high - left.log() / 2
    likely = (scores.log_softmax(2) + each - math.log(2 * math.pi)).logsumexp(2)
    drawn = 1 - rows[:, 1:, 4]
    return -(likely * drawn).mean() + F.cross_entropy(pen.flatten(0, 1), rows[:, 1:, 2:].argmax(2).flatten())


@honest("r27i-where-the-pen-goes-next")
def where_the_pen_goes_next(run: Run) -> None:
    """accelerate, drawings by a recurrent network with a mixture (sketch-RNN, Ha and Eck 2018, after Graves 2013).
    Movements behind the end count nothing and are divided by all the same, whereas the marks of the pen are taught
    there, too, so that the one half of the loss is a mean over drawings and the other over padding; the half with a
    density falls below nought, and deviations are exponentials without a floor."""
    own = apart(run.draw.randrange(999))
    rows, new = drawings(400, own), drawings(200, own)
    model = Pen()
    outcome(run, lambda: judged(model, lambda: pen_loss(model, (new,))))
    prepared(run, model, adam(model, 5e-3), loader(rows, size=40), pen_loss, 14)


def spelt(count: int, own: torch.Generator) -> dict[str, Tensor]:
    """Words of letters 3 to 14 and how they sound, 15 to 24, both with an end, 1, and behind it 0 or -100."""
    letters, sounds = torch.zeros(count, 9, dtype=torch.long), torch.full((count, 9), -100)
    sizes = torch.randint(4, 9, (count,), generator=own).tolist()
    for row, heard, size in zip(letters, sounds, sizes, strict=True):
        word = torch.randint(0, 12, (size,), generator=own).tolist()
        word[1::2] = [letter % 4 for letter in word[1::2]]
        said = []
        for i, letter in enumerate(word):
            after = word[i + 1] if i + 1 < size else -1
            if letter == after or (letter == 3 and after == -1):
                continue
            said.append(18 if letter in (5, 6) and after in (1, 3) else 15 + letter % 10)
        row[: size + 1] = torch.tensor([*(3 + letter for letter in word), 1])
        heard[: len(said) + 1] = torch.tensor([*said, 1])
    return {"input_ids": letters, "attention_mask": (letters != 0).long(), "labels": sounds}


@honest("r27i-letters-in-and-sounds-out")
def letters_in_and_sounds_out(run: Run) -> None:
    """transformers' Trainer, how a word sounds by an encoder and decoder of single letters (Wu, Cotterell and Hulden
    2021; BART's form). There are no words and no pieces, letters and sounds are numbered apart in one table, double
    letters and one at the end are not heard, so that both sides differ in length, and the decoder begins with what
    else is the end."""
    from transformers import BartConfig, BartForConditionalGeneration

    settings: dict[str, Any] = {"vocab_size": 26, "d_model": 48, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    settings |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    settings |= {"max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    settings |= {"decoder_start_token_id": 1, "forced_eos_token_id": None, "dropout": 0.0, "init_std": 0.1}
    model = BartForConditionalGeneration(BartConfig(**settings))
    own = apart(run.draw.randrange(999))
    rows, new = spelt(600, own), spelt(200, own)
    outcome(run, lambda: judged(model, lambda: model(**new).loss))
    hf_trainer(run, model, examples(**rows), 180, learning_rate=5e-3, lr_scheduler_type="constant").train()
