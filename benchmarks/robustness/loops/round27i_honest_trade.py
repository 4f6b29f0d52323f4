"""Round 27i, honest and odd: models of trade, travel and insurance."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


class Traveller(nn.Module):
    """What a way of travelling is worth: two weights for fare and time, and a network of the traveller alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2))
        self.taste = mlp(5, 24, 4)

    def forward(self, offers: Tensor, traits: Tensor, open_to: Tensor) -> Tensor:
        worth: Tensor = offers @ self.weights + self.taste(traits)
        return worth.masked_fill(~open_to, -torch.inf)


def journeys(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fare and time of four ways of travelling, five traits of who travels, what is open, and which was taken."""
    liked = torch.randn(5, 4, generator=apart(seed))
    offers = 2 * torch.rand(count, 4, 2, generator=own)
    traits = torch.randn(count, 5, generator=own)
    open_to = torch.rand(count, 4, generator=own) < 0.7
    open_to[:, 3] = True
    worth = offers @ torch.tensor([-1.5, -2.0]) + 1.5 * (traits @ liked).tanh()
    worth = worth - (-torch.rand(count, 4, generator=own).log()).log()
    return offers, traits, open_to, worth.masked_fill(~open_to, -torch.inf).argmax(1)


@honest("r27i-what-the-fare-takes-away")
def what_the_fare_takes_away(run: Run) -> None:
    """Plain loop, travel demand by a logit model with a network beside it (L-MNL, Sifringer, Lurkin and Alahi 2020).
    Two bare weights, which begin at nought and are to be read as prices, stand beside a network that never sees what
    they weigh; who has no car has minus infinity for the car, so that rows have other numbers of classes, and the fare
    has no bias and no scale of its own."""
    seed = run.draw.randrange(999)
    rows = journeys(800, seed, apart(seed + 1))
    new = journeys(400, seed, apart(seed + 2))
    model = Traveller()

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(model(*batch[:3]), batch[3])

    outcome(run, lambda: judged(model, lambda: loss(model, new)))

    def batch() -> tuple[Tensor, ...]:
        taken = torch.randint(0, 800, (64,))
        return tuple(column[taken] for column in rows)

    train(run, model, adam(model, 1e-2), batch, loss, 150)


UNKNOWN = -99.0


def claims(companies: int, own: torch.Generator) -> Tensor:
    """(companies, 10, 10) what each year's accidents cost in each year after, as shares of the premium."""
    pace = 0.4 + 0.3 * torch.rand(companies, 1, 1, generator=own)
    whole = 0.6 + 0.2 * torch.rand(companies, 10, 1, generator=own)
    shares = pace ** torch.arange(10) * (1 - pace)
    return whole * shares * (1 + 0.05 * torch.randn(companies, 10, 10, generator=own))


def known_by(triangles: Tensor, year: int) -> list[tuple[int, Tensor, int, Tensor]]:
    """Rows (company, history, its length, what followed) with what is not known after `year` marked."""
    rows = []
    for company, triangle in enumerate(triangles):
        for first in range(9):
            line = triangle[first].clone()
            line[year - first + 1 :] = UNKNOWN
            for length in range(1, min(9, year - first) + 1):
                history, future = torch.full((9,), UNKNOWN), torch.full((9,), UNKNOWN)
                history[:length], future[: 10 - length] = line[:length], line[length:]
                rows.append((company, history, length, future))
    return rows


class Reserving(nn.Module):
    """An encoder of what was paid and a decoder of what will be, with a vector for each company."""

    def __init__(self, companies: int) -> None:
        super().__init__()
        self.company = nn.Embedding(companies, 4)
        self.encoder, self.decoder = nn.GRU(1, 24, batch_first=True), nn.GRU(24, 24, batch_first=True)
        self.head = mlp(28, 24, 1)

    def forward(self, company: Tensor, history: Tensor, length: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(history[..., None], length, batch_first=True, enforce_sorted=False)
        state = self.encoder(packed)[1][0]
        steps = self.decoder(state[:, None].expand(-1, 9, -1))[0]
        whose = self.company(company)[:, None].expand(-1, 9, -1)
        out: Tensor = self.head(torch.cat([steps, whose], 2)).squeeze(2)
        return out


class ReservingRun:
    """The actuary's own trainer: rows of the upper triangle, epoch after epoch, by AMSGrad."""

    def __init__(self, run: Run, model: Reserving, rows: list[tuple[int, Tensor, int, Tensor]]) -> None:
        self.run, self.model = run, model
        self.columns = tuple(
            torch.stack(column) if torch.is_tensor(column[0]) else torch.tensor(column)
            for column in zip(*rows, strict=True)
        )
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
        self.doctor = run.watch(model, self.optimizer)

    def error(self, batch: tuple[Tensor, ...]) -> Tensor:
        company, history, length, future = batch
        known = future != UNKNOWN
        return (self.model(company, history, length) - future)[known].square().mean()

    def go(self, epochs: int) -> None:
        for _ in range(epochs):
            for batch in loader(*self.columns, size=64):
                update(self.run, self.doctor, self.optimizer, self.error(batch), batch)


@honest("r27i-the-lower-right-corner-is-not-known")
def the_lower_right_corner_is_not_known(run: Run) -> None:
    """Own class, reserves of insurers by an encoder and decoder (DeepTriangle, Kuo 2019). Inputs and targets are full
    of -99, which says that the year has not come; the same payments are input in one row and target in another, the
    very last years are never taught at all, and what is wanted is only what no row could show: the lower triangle."""
    own = apart(run.draw.randrange(999))
    triangles = claims(16, own)
    model = Reserving(16)
    rows = [row for row in known_by(triangles, 9) if (row[3] != UNKNOWN).any()]

    def unpaid() -> Tensor:
        wrong, whole = torch.zeros(()), torch.zeros(())
        for first in range(1, 9):
            length = 10 - first
            history = torch.full((16, 9), UNKNOWN)
            history[:, :length] = triangles[:, first, :length]
            said = model(torch.arange(16), history, torch.full((16,), length))[:, :first]
            wrong += (said - triangles[:, first, length:]).abs().sum()
            whole += triangles[:, first, length:].sum()
        return wrong / whole

    outcome(run, lambda: judged(model, unpaid))
    ReservingRun(run, model, rows).go(16)


def motorway(hours: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(hours, 10) speeds with nought where a sensor was silent, the same without gaps, and who lies behind whom."""
    ahead = torch.zeros(10, 10)
    for i in range(9):
        ahead[i, i + 1] = 1.0
    ahead[2, 7] = ahead[4, 9] = 0.5
    ahead[9, 0] = 0.2
    ahead = ahead / ahead.sum(1, keepdim=True)
    jam, rows = torch.rand(10, generator=own), []
    for hour in range(hours):
        rush = torch.sin(torch.tensor(6.283 * hour / 24)).clamp_min(0)
        jam = 0.6 * ahead @ jam + 0.25 * jam + 0.3 * rush * torch.rand(10, generator=own)
        rows.append(jam)
    speeds = 65 - 40 * torch.stack(rows).clamp(0, 1.4)
    silent = torch.rand(hours, 10, generator=own) < 0.08
    return speeds.masked_fill(silent, 0.0), speeds, ahead


class DiffusionCell(nn.Module):
    """A gated recurrent cell whose matrices are walks along the road, two steps each way."""

    def __init__(self, inputs: int, width: int, walks: list[Tensor]) -> None:
        super().__init__()
        self.register_buffer("walks", torch.stack(walks))
        self.gates = nn.Linear(len(walks) * (inputs + width), 2 * width)
        self.new = nn.Linear(len(walks) * (inputs + width), width)

    def walked(self, x: Tensor) -> Tensor:
        return torch.einsum("kij,bjc->bikc", self.walks, x).flatten(2)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        keep, reset = self.gates(self.walked(torch.cat([x, state], 2))).sigmoid().chunk(2, 2)
        fresh = self.new(self.walked(torch.cat([x, reset * state], 2))).tanh()
        return keep * state + (1 - keep) * fresh


class RoadForecast(nn.Module):
    def __init__(self, ahead: Tensor) -> None:
        super().__init__()
        behind = ahead.T / ahead.T.sum(1, keepdim=True).clamp_min(1e-6)
        walks = [torch.eye(10), ahead, ahead @ ahead, behind, behind @ behind]
        self.read, self.write = DiffusionCell(1, 12, walks), DiffusionCell(1, 12, walks)
        self.head = nn.Linear(12, 1)

    def forward(self, past: Tensor, future: Tensor | None = None, shown: float = 0.0) -> Tensor:
        state = past.new_zeros(len(past), 10, 12)
        for t in range(past.shape[1]):
            state = self.read(past[:, t, :, None], state)
        last, out = past.new_zeros(len(past), 10, 1), []
        for t in range(6):
            state = self.write(last, state)
            last = self.head(state)
            out.append(last.squeeze(2))
            if future is not None and float(torch.rand(())) < shown:
                last = future[:, t, :, None]
        return torch.stack(out, 1)


@honest("r27i-a-silent-sensor-reads-nought")
def a_silent_sensor_reads_nought(run: Run) -> None:
    """Plain loop, speeds on a motorway by a diffusion convolutional recurrent network (DCRNN, Li, Yu, Shahabi and Liu
    2018). A nought is no speed but a sensor that was silent: it goes in as it is, far below the others, and is left
    out of the error, whose mask is divided by its mean. What the decoder reads is the truth or its own last word, by a
    coin for the whole batch whose chance falls; errors are told in miles per hour, not in the scale of the network."""
    own = apart(run.draw.randrange(999))
    speeds, clean, ahead = motorway(500, own)
    seen = speeds[:400][speeds[:400] > 0]
    mean, spread = seen.mean(), seen.std()
    model = RoadForecast(ahead)

    def windows(starts: Tensor, source: Tensor) -> Tensor:
        return torch.stack([source[s : s + 12] for s in starts.tolist()])

    late = torch.arange(400, 488)

    def far_off() -> Tensor:
        said = model((windows(late, speeds)[:, :6] - mean) / spread) * spread + mean
        return (said - windows(late, clean)[:, 6:]).abs().mean()

    outcome(run, lambda: judged(model, far_off))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        batch = windows(torch.randint(0, 388, (24,)), speeds)
        scaled = (batch - mean) / spread
        said = model(scaled[:, :6], scaled[:, 6:], 30 / (30 + 2.718 ** (step / 30))) * spread + mean
        heard = (batch[:, 6:] != 0).float()
        loss = ((said - batch[:, 6:]).abs() * heard / heard.mean()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


def invoices(count: int, seed: int, own: torch.Generator) -> dict[str, Tensor]:
    """Pages of 14 words with their boxes on a grid of 48: what a word is follows from where it stands, and a little
    from the word."""
    corner = torch.randint(16, 30, (2,), generator=apart(seed)).tolist()
    at = torch.randint(0, 42, (count, 14, 2), generator=own)
    size = torch.randint(2, 6, (count, 14, 2), generator=own)
    right, low = (at[..., 0] > corner[0]).long(), (at[..., 1] > corner[1]).long()
    labels = right + 2 * low
    number = torch.rand(count, 14, generator=own) < 0.6
    words = torch.where(number, torch.randint(4, 10, at.shape[:2], generator=own), 10)
    words = torch.where(number, words, torch.randint(10, 24, at.shape[:2], generator=own))
    labels = torch.where(number, labels, 4)
    labels[:, 0], words[:, 0] = -100, 1
    box = torch.cat([at, at + size], 2)
    box[:, 0] = 0
    return {"input_ids": words, "bbox": box, "attention_mask": torch.ones_like(words), "labels": labels}


@honest("r27i-where-on-the-page-a-word-stands")
def where_on_the_page_a_word_stands(run: Run) -> None:
    """transformers' Trainer, fields of invoices by LayoutLM (Xu et al. 2020). The same number is a date, a net sum or
    a total by where it was printed: words come with four coordinates that are looked up in tables of their own, for
    left and right in the same one, the order of the words says nothing, and a word in three is no field at all."""
    from transformers import LayoutLMConfig, LayoutLMForTokenClassification

    seed = run.draw.randrange(999)
    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 24}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 16, "max_2d_position_embeddings": 48}
    model = LayoutLMForTokenClassification(LayoutLMConfig(**settings, num_labels=5))
    new = invoices(96, seed, apart(seed + 2))
    outcome(run, lambda: judged(model, lambda: model(**new).loss))
    data = examples(**invoices(400, seed, apart(seed + 1)))
    hf_trainer(run, model, data, 120, learning_rate=5e-3, warmup_steps=12).train()


NOISY_STEPS = 50


class TableNoise(nn.Module):
    """Says of a noisy row which noise its three numbers have and what its two words were."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.kind = nn.Embedding(NOISY_STEPS, 32), nn.Embedding(2, 32)
        self.enter, self.body = nn.Linear(3 + 4 + 3, 32), mlp(32, 64, 64, 10, act=nn.SiLU)
        kept = torch.linspace(1, 0, NOISY_STEPS + 1)
        self.register_buffer("kept", (kept * 1.5708 - 1.5708).cos().square().clamp(1e-4, 0.9999))

    def forward(self, row: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        out: Tensor = self.body(self.enter(row) + self.time(time) + self.kind(kind))
        return out


def behind(noisy: Tensor, clean: Tensor, kept: Tensor, before: Tensor) -> Tensor:
    """The chances of a word one step earlier, from what it is now and what it was at first."""
    levels, step = clean.shape[1], kept / before
    product = (step * noisy + (1 - step) / levels) * (before * clean + (1 - before) / levels)
    return product / product.sum(1, keepdim=True)


def both_noises(net: Any, batch: Any, own: torch.Generator | None = None) -> Tensor:
    numbers, first, second, kind = batch
    time = torch.randint(0, NOISY_STEPS, (len(kind),), generator=own)
    before, kept = net.kept[time, None], net.kept[time + 1, None]
    noise = torch.randn(numbers.shape, generator=own)
    words = [F.one_hot(first, 4).float(), F.one_hot(second, 3).float()]
    drawn = [torch.multinomial(kept * w + (1 - kept) / w.shape[1], 1, generator=own).squeeze(1) for w in words]
    noisy = [F.one_hot(d, w.shape[1]).float() for d, w in zip(drawn, words, strict=True)]
    said = net(torch.cat([kept.sqrt() * numbers + (1 - kept).sqrt() * noise, *noisy], 1), time, kind)
    loss = F.mse_loss(said[:, :3], noise)
    for now, clean, guess in zip(noisy, words, said[:, 3:].split([4, 3], 1), strict=True):
        truth, model = behind(now, clean, kept, before), behind(now, guess.softmax(1), kept, before)
        loss = loss + (truth * (truth.clamp_min(1e-9).log() - model.clamp_min(1e-9).log())).sum(1).mean() / 2
    return loss


def customers(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, ...]:
    """Rows of three numbers, a region of four and a tariff of three, and whether the customer left."""
    mix = torch.randn(3, 3, generator=apart(seed))
    region = torch.randint(0, 4, (count,), generator=own)
    numbers = torch.randn(count, 3, generator=own) * 0.5 @ mix
    numbers[:, 0] += region - 1.5
    tariff = (numbers[:, 1] > 0).long() + (numbers[:, 2] > 0).long()
    left = (numbers[:, 0] + 0.3 * torch.randn(count, generator=own) > 0).long()
    return (numbers - numbers.mean(0)) / numbers.std(0), region, tariff, left


@honest("r27i-numbers-and-words-undo-their-noise")
def numbers_and_words_undo_their_noise(run: Run) -> None:
    """Lightning, tables of customers made up by diffusion (TabDDPM, Kotelnikov et al. 2023). One row is spoilt in two
    ways at once: its numbers by Gaussian noise, which is the label, and its words by other words by lot, where the
    loss is a divergence between two posteriors that is nought whenever the noise is strong. Whether the customer left,
    the column that others would predict, is an input."""
    seed = run.draw.randrange(999)
    rows, new = customers(600, seed, apart(seed + 1)), customers(512, seed, apart(seed + 2))
    model = TableNoise()
    outcome(run, lambda: judged(model, lambda: both_noises(model, new, apart(3))))
    module = lit(model, both_noises, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0))
    fit(run, module, loader(*rows, size=64), 180)
