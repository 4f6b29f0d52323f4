"""Round 27h, honest and odd: labels that are softer, coarser, cut off, wrong on purpose or partly missing."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    documents,
    endless,
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
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import Patches, spots
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F

SPECIES = 8


def above(a: Tensor, b: Tensor) -> Tensor:
    """How high in the tree of species the lowest common ancestor stands: 0 for the same, up to 1 for the root."""
    height = sum((a >> level != b >> level).float() for level in range(3))
    return torch.as_tensor(height) / 3


def animals(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 1, 8, 8) pictures: what is common to the family, to the genus and to the species, in noise."""
    start = apart(seed)
    forms = [torch.randn(2 << level, 1, 8, 8, generator=start) for level in range(3)]
    y = torch.randint(0, SPECIES, (count,), generator=own)
    clean = forms[0][y >> 2] + 0.7 * forms[1][y >> 1] + 0.5 * forms[2][y]
    return clean + 1.2 * torch.randn(clean.shape, generator=own), y


@honest("r27h-cousins-share-the-label")
def cousins_share_the_label(run: Run) -> None:
    """accelerate, convolutions over pictures of species, making better mistakes by soft labels (Bertinetto et al.
    2020). The label's mass falls with the height of the common ancestor, so that the right species gets three
    quarters and each of the others something, most of it the sister; the cross-entropy cannot come below that
    label's entropy, about three quarters of a nat, and what is wanted is not the share of right answers but
    mistakes within the family."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(384, SPECIES)),
    )
    x, y = animals(512, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: above(net(x).argmax(1), y).mean()))
    kinds = torch.arange(SPECIES)
    soft = (-5 * above(kinds[:, None], kinds[None])).softmax(1)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return -(soft[batch[1]] * net(batch[0]).log_softmax(1)).sum(1).mean()

    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    prepared(run, net, optimizer, loader(*animals(1280, seed, apart(2)), size=64), loss, 7)


@honest("r27h-some-labels-drawn-anew-on-purpose")
def some_labels_drawn_anew_on_purpose(run: Run) -> None:
    """Plain loop, a vision transformer on few pictures with DisturbLabel (Xie et al. 2016). In each batch a tenth of
    the labels, others each time, is replaced by classes drawn evenly among all, so that the same picture is
    taught now one class and now another; it is a regulariser like dropout, and the loss keeps a floor that no
    network comes below."""
    model = Patches(5)
    check = spots(512, 5, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    data = endless(loader(*spots(400, 5, apart(run.draw.randrange(999) + 2)), size=32))

    def disturbed() -> tuple[Tensor, Tensor]:
        x, y = next(data)
        return x, torch.where(torch.rand(len(y)) < 0.1, torch.randint(0, 4, y.shape), y)

    train(run, model, adam(model, 3e-3), disturbed, classify, 150)


def strangers(count: int, length: int = 12, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Rows of other texts: the same words and some that no document has, in no group."""
    x = torch.randint(1, 24, (count, length), generator=own)
    return x, torch.ones(count, length, dtype=torch.bool)


class TellsStrangers:
    """The user's own trainer with two streams: documents with classes, and other texts without."""

    def __init__(self, run: Run, model: Classifier) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 150)
        self.doctor = run.watch(model, self.optimizer, scheduler=self.scheduler)

    def loss(self, known: Any, other: Any) -> Tensor:
        ids, keep = torch.cat([known[0], other[0]]), torch.cat([known[1], other[1]])
        logits = self.model(ids, keep)
        inside, outside = logits[: len(known[0])], logits[len(known[0]) :]
        return F.cross_entropy(inside, known[2]) - 0.5 * outside.log_softmax(1).mean()

    def run_all(self, known: Any, other: Any, steps: int) -> None:
        self.model.train()
        for _ in range(steps):
            a, b = next(known), next(other)
            self.optimizer.zero_grad()
            loss = self.loss(a, b)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.doctor.step(loss, (a, b))
            self.run.note(loss)


@honest("r27h-strangers-are-every-class-alike")
def strangers_are_every_class_alike(run: Run) -> None:
    """A class of the user's own, a small BERT with outlier exposure (Hendrycks et al. 2019). Half of every batch are
    texts of no class at all, taken from elsewhere: their label is the even distribution over the classes, so
    that for half of the rows the network is taught to know nothing, and half a nat of the loss can never go
    away."""
    model = Classifier(24)
    known, other = documents(400, apart(1)), strangers(400, own=apart(2))

    def measure() -> Tensor:
        fits = F.cross_entropy(model(known[0], known[1]), known[2])
        sure, unsure = (model(*rows[:2]).softmax(1).amax(1) for rows in (known, other))
        return fits + (sure[:, None] <= unsure[None]).float().mean()

    outcome(run, lambda: judged(model, measure))
    seed = run.draw.randrange(999) + 3
    here, there = loader(*documents(640, apart(seed)), size=24), loader(*strangers(960, own=apart(seed)), size=24)
    TellsStrangers(run, model).run_all(endless(here), endless(there), 150)


def patients(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their class of three, and what the doctor said, who is nearly always right where a row's first column is
    above zero; there the other columns tell little."""
    w = torch.randn(7, 3, generator=apart(seed))
    x = torch.randn(count, 8, generator=own)
    hard = (x[:, 0] > 0)[:, None].float()
    scores = x[:, 1:] @ w * (1 - 0.85 * hard)
    noise = torch.rand(count, 3, generator=own).clamp(1e-6, 1 - 1e-6)
    y = (scores - (-noise.log()).log() * (0.3 + 0.7 * hard)).argmax(1)
    right = torch.rand(count, generator=own) < 0.4 + 0.55 * hard[:, 0]
    return x, y, torch.where(right, y, (y + torch.randint(1, 3, y.shape, generator=own)) % 3)


@honest("r27h-some-rows-are-left-to-the-doctor")
def some_rows_are_left_to_the_doctor(run: Run) -> None:
    """Lightning, a table with learning to defer (Mozannar and Sontag 2020). The network has one class more than there
    are labels, and that one is no label of any row: it says that a person should decide. A row whose doctor was
    right is taught two classes at once, each with the whole weight, so that the loss has no distribution for its
    target and stays high, and what counts is how often the two of them together are right."""
    seed = run.draw.randrange(999)
    net = mlp(8, 48, 48, 4)
    new, truth, doctor = patients(1500, seed, apart(1))

    def wrong() -> Tensor:
        said = net(new).argmax(1)
        return (torch.where(said == 3, doctor, said) != truth).float().mean()

    outcome(run, lambda: judged(net, wrong))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        x, y, person = batch
        likely = net(x).log_softmax(1)
        return -(likely.gather(1, y[:, None]).squeeze(1) + (person == y) * likely[:, 3]).mean()

    fit(run, lit(net, loss, adamw(3e-3)), loader(*patients(2000, seed, apart(2)), size=64), 180)


EVENTS, FRAMES, BANDS = 3, 40, 10


def scenes(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, FRAMES, BANDS) of noise in which events sound for a while, and (count, FRAMES, EVENTS) when they do."""
    colours = torch.randn(EVENTS, BANDS, generator=apart(seed))
    present = torch.rand(count, EVENTS, generator=own) < 0.4
    begin = torch.randint(0, 28, (count, EVENTS), generator=own)
    length = torch.randint(6, 16, (count, EVENTS), generator=own)
    at = torch.arange(FRAMES)[None, :, None]
    when = (present[:, None] & (at >= begin[:, None]) & (at < (begin + length)[:, None])).float()
    return when @ colours + 0.8 * torch.randn(count, FRAMES, BANDS, generator=own), when


class Scene(nn.Module):
    """Convolutions and a GRU both ways: how likely each event is in each frame, and in the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Conv1d(BANDS, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU())
        self.along = nn.GRU(16, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, EVENTS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.head(self.along(self.near(x.transpose(1, 2)).transpose(1, 2))[0]).sigmoid()
        frames = frames.clamp(1e-6, 1 - 1e-6)
        return frames, frames.square().sum(1) / frames.sum(1)


@honest("r27h-some-know-when-and-some-only-that")
def some_know_when_and_some_only_that(run: Run) -> None:
    """Plain loop, sounds in scenes by convolutions and a GRU, as in DCASE's fourth task with linear softmax pooling
    (Wang et al. 2019). Four rows of each batch say when each event sounds, the other twenty only that it does,
    somewhere; to these the network's frames are pooled by weights that are the frames themselves, their frame
    labels are -1 and never read, and the same few rows with times come again and again among ever other rows
    without."""
    seed = run.draw.randrange(999)
    model = Scene()
    x, when = scenes(200, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy(model(x)[0], when)))
    strong, weak = scenes(24, seed, apart(2)), scenes(400, seed, apart(3))
    weak = (weak[0], weak[1].amax(1))
    optimizer = adam(model, 5e-3)
    doctor = run.watch(model, optimizer)
    model.train()
    for _ in range(120):
        a, b = torch.randint(0, 24, (4,)), torch.randint(0, 400, (20,))
        sound = torch.cat([strong[0][a], weak[0][b]])
        times = torch.cat([strong[1][a], torch.full((20, FRAMES, EVENTS), -1.0)])
        there = torch.cat([strong[1][a].amax(1), weak[1][b]])
        frames, whole = model(sound)
        known = times[:, 0, 0] >= 0
        loss = F.binary_cross_entropy(whole, there) + F.binary_cross_entropy(frames[known], times[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (sound, times, there))
        run.note(loss)


SIDE = 16


def stones(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of one ellipse, brighter or darker than what lies around it; the box about it, filled; and the mask."""
    centre = SIDE / 2 - 0.5 + 2 * torch.randn(count, 2, 1, 1, generator=own).clamp(-1, 1)
    radii = 3 + 2.5 * torch.rand(count, 2, 1, 1, generator=own)
    down, across = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    inside = ((down - centre[:, 0]) / radii[:, 0]).square() + ((across - centre[:, 1]) / radii[:, 1]).square() < 1
    mask = inside.float()
    ground, thing = torch.randn(count, 1, 1, generator=own), 0.8 + 0.6 * torch.rand(count, 1, 1, generator=own)
    picture = ground + mask * thing * 2 + 0.15 * torch.randn(count, SIDE, SIDE, generator=own)
    box = mask.amax(1, keepdim=True) * mask.amax(2, keepdim=True)
    return picture[:, None], box, mask


def dice(a: Tensor, b: Tensor) -> Tensor:
    """One less twice the overlap over the sum of squares, of each row."""
    a, b = a.flatten(1), b.flatten(1)
    return 1 - 2 * (a * b).sum(1) / (a.square().sum(1) + b.square().sum(1) + 1e-5)


def by_box(model: nn.Module, batch: tuple[Tensor, Tensor], weight: float) -> Tensor:
    """BoxInst's two terms: the shadows on both sides, and neighbours of one colour."""
    picture, box = batch
    mask = model(picture).squeeze(1).sigmoid()
    shadows = dice(mask.amax(1), box.amax(1)) + dice(mask.amax(2), box.amax(2))
    pairs, counted = torch.zeros(()), torch.zeros(())
    for axis in (1, 2):
        a, b = mask.narrow(axis, 0, SIDE - 2), mask.narrow(axis, 2, SIDE - 2)
        colour = picture.squeeze(1)
        alike = (colour.narrow(axis, 0, SIDE - 2) - colour.narrow(axis, 2, SIDE - 2)).abs().mul(-1).exp() > 0.5
        within = (box.narrow(axis, 0, SIDE - 2) + box.narrow(axis, 2, SIDE - 2)) > 0
        same = -(a * b + (1 - a) * (1 - b)).clamp(1e-6, 1).log()
        pairs, counted = pairs + (same * (alike & within)).sum(), counted + (alike & within).sum()
    return shadows.mean() + weight * pairs / counted.clamp(min=1)


@honest("r27h-only-the-box-around-it-is-known")
def only_the_box_around_it_is_known(run: Run) -> None:
    """Plain loop, outlines by convolutions from boxes alone, as in BoxInst (Tian et al. 2021). No pixel has a label:
    the largest value of each row and column must be the box's side, and pixels two apart of about one colour
    must be called the same, whichever; one alone allows the whole box or nothing. The second term's weight grows
    from zero over the first sixty steps, and the loss may rise with it."""
    layers = [nn.Conv2d(1, 12, 5, padding=2), nn.BatchNorm2d(12), nn.ReLU()]
    layers += [nn.Conv2d(12, 12, 5, padding=4, dilation=2), nn.BatchNorm2d(12), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    picture, _, mask = stones(128, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: dice(model(picture).sigmoid(), mask).mean()))
    optimizer = adam(model, 5e-3)
    doctor = run.watch(model, optimizer)
    model.train()
    for step in range(140):
        batch = stones(16)[:2]
        loss = by_box(model, batch, min(1.0, step / 60))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


PAST = 30


def engines(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows of PAST cycles of four sensors, each from an engine of its own, and the cycles that it has left, at most
    125, over 125."""
    left = torch.randint(0, 260, (count,), generator=own).float()
    before = left[:, None] + torch.arange(PAST - 1, -1, -1)
    worn = (-before / (25 + 20 * torch.rand(count, 1, generator=own))).exp()
    way = torch.tensor([1.0, -1.0, 0.7, 0.0])
    x = worn[..., None] * 2 * way + 0.25 * torch.randn(count, PAST, 4, generator=own)
    return x, left.clamp(max=125) / 125


class Engine(nn.Module):
    """An LSTM, and from its last state one number."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(4, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1]).squeeze(1)
        return out


@honest("r27h-no-engine-has-more-than-125-left")
def no_engine_has_more_than_125_left(run: Run) -> None:
    """transformers' Trainer around an LSTM, cycles left of engines as for NASA's C-MAPSS (Heimes 2008). What is known
    is thrown away: more than 125 cycles are called 125, as an engine that is not yet worn shows nothing, so that
    half of all labels are the very same number, and the largest."""
    net = Engine()
    x, left = engines(600, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x), left)))
    x_there, left_there = engines(1200, apart(run.draw.randrange(999) + 2))
    data = examples(x=x_there, labels=left_there)
    options = {"per_device_train_batch_size": 32, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10}
    hf_trainer(run, WithLoss(net, F.mse_loss), data, 160, **options).train()
