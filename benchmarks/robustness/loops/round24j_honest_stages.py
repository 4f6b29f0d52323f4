"""Round 24j, honest and odd: stages, schedules, resumes, freezing and merging."""

import math
import tempfile
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Listener, Translator, sounds
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


class Thin(nn.Module):
    """A linear layer that stands still, and a product of two thin matrices that may be poured into it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.empty(base.out_features, rank))
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        nn.init.kaiming_uniform_(self.down, math.sqrt(5))
        self.up.zero_()

    @torch.no_grad()
    def pour(self) -> None:
        self.base.weight += self.up @ self.down
        self.renew()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return out


@honest("r24j-thin-updates-poured-in-and-begun-anew")
def thin_updates_poured_in_and_begun_anew(run: Run) -> None:
    """Plain loop, a small GPT from the start by ReLoRA (Lialin et al. 2023). After forty steps with all weights, the
    matrices stand still and are moved by thin products alone; every thirty steps a product is added to its matrix, the
    thin factors are drawn anew, all but the largest hundredth of the moments is put to zero, and the rate climbs once
    more from next to nothing. Embeddings and norms learn all the time, and in one step in thirty nothing but they
    moves much."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    for _ in range(40):
        rows = language.rows(16, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Thin(block.attention.qkv), Thin(block.attention.out)
        block.feed[0], block.feed[2] = Thin(block.feed[0]), Thin(block.feed[2])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=8e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        since = step % 30
        if step and not since:
            for module in model.modules():
                if isinstance(module, Thin):
                    module.pour()
                    for p in (module.down, module.up):
                        for moment in (optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]):
                            moment *= moment.abs() >= moment.abs().quantile(0.99)
        low = 0.1 + 0.45 * (1 + math.cos(math.pi * step / 120))
        optimizer.param_groups[0]["lr"] = 8e-3 * low * min(1.0, (since + 1) / 6)
        rows = language.rows(16, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)


class AnySize(nn.Module):
    """Convolutions, the mean over places, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def seen_at(x: Tensor, side: int) -> Tensor:
    return F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)


@honest("r24j-last-layer-once-more-at-the-size-of-use")
def last_layer_once_more_at_the_size_of_use(run: Run) -> None:
    """Plain loop, pictures by a CNN in two sizes (FixRes, Touvron et al. 2019). It learns from crops that are drawn
    large and is used on whole pictures, in which things are smaller; so at the end, the convolutions stand still and
    the head and the norm before it learn once more, at the size of use and without any augmentation. The convolutions
    remain in training mode for their statistics, the rate begins at a hundredth, and the loss jumps at the change."""
    task = run.draw.randrange(999)
    model = AnySize()
    check, y = pictures(384, task, own=apart(1))
    class_outcome(run, model, (seen_at(check, 14), y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 110)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    for _ in range(110):
        x, y = pictures(48, task)
        left, top = torch.randint(0, 3, (2,)).tolist()
        batch = (seen_at(x[:, :, top : top + 6, left : left + 6], 12), y)
        update(run, doctor, optimizer, classify(model, batch), batch)
        schedule.step()
    model.requires_grad_(False)
    for part in (model.body[5], model.head):
        part.requires_grad_(True)
    rest = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(rest, lr=1e-3, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(50):
        x, y = pictures(48, task)
        batch = (seen_at(x, 14), y)
        update(run, doctor, optimizer, classify(model, batch), batch)


class SecondColumn(nn.Module):
    """A second net beside a first that stands still; each layer reads its own column and, by an adapter, the other."""

    def __init__(self, first: Listener) -> None:
        super().__init__()
        self.first = first.requires_grad_(False)
        self.low, self.high = nn.Conv1d(1, 6, 5, 2, 2), nn.Conv1d(6, 12, 5, 2, 2)
        self.across = nn.Sequential(nn.Conv1d(12, 6, 1), nn.ReLU(), nn.Conv1d(6, 12, 5, 2, 2))
        self.head, self.across_head = nn.Linear(12, 3), nn.Linear(24, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        before = self.first.body[:2](x)
        after = self.first.body[2:](before)
        own = (self.high(self.low(x).relu()) + self.across(before)).relu()
        out: Tensor = self.head(own.mean(2)) + self.across_head(after.mean(2))
        return out


@honest("r24j-second-column-reads-the-first")
def second_column_reads_the_first(run: Run) -> None:
    """Lightning, sounds by a progressive network (Rusu et al. 2016). The first column knows another task and stands
    still, but is part of the model, of every forward pass and of the backward pass of nobody; its own head is never
    asked and gets no gradient. What learns is the new column, narrower than the old, and the adapters between."""

    def mixed(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Which of three pairs of pitches sounds."""
        pairs = torch.tensor([[0, 1], [1, 2], [2, 3]])
        y = torch.randint(0, 3, (count,), generator=own)
        phase = 6.28 * torch.rand(count, 2, 1, generator=own)
        both = (torch.arange(64) * (0.3 + 0.25 * pairs[y][..., None]) + phase).sin().sum(1)
        return (both + 0.8 * torch.randn(count, 64, generator=own))[:, None], y

    first = Listener()
    taught(first, lambda: sounds(64), classify, 80)
    net = SecondColumn(first)
    class_outcome(run, net, mixed(384, apart(1)))
    module = lit(net, classify, lambda m: torch.optim.RMSprop([p for p in m.parameters() if p.requires_grad], lr=2e-3))
    fit(run, module, loader(*mixed(960), size=32), 150)


@honest("r24j-places-squeezed-to-reach-three-times-as-far")
def places_squeezed_to_reach_three_times_as_far(run: Run) -> None:
    """transformers' Trainer, a Llama made to read longer texts by position interpolation (Chen et al. 2023). The
    weights are those of a model that has read sixteen words at a time; all its places are divided by three, so that
    words next to one another are a third of a place apart, and it is trained on a little at a low rate. So the first
    loss is above where the old model ended, though nothing was loaded wrongly."""
    language = Language(run.draw.randrange(999))
    shape: dict[str, Any] = {"vocab_size": 12, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    old = llama(**shape)
    taught(old, lambda: language.rows(24, 16), lambda m, b: m(input_ids=b, labels=b).loss, 150)
    squeezed = {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0}
    model = llama(**shape, rope_parameters=squeezed)
    model.load_state_dict(old.state_dict())
    check = language.rows(64, 48, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(256, 48)
    options = {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "warmup_steps": 10, "weight_decay": 0.0}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80, **options).train()


class Fading(nn.Module):
    """States that fade at rates of their own, each fed and read by a matrix; a gate; a residual."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.linspace(-2.0, 3.0, width))
        self.norm = nn.LayerNorm(width)
        self.feed, self.gate, self.read = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        keep, now = self.rates.sigmoid(), self.norm(x)
        state, states = torch.zeros_like(x[:, 0]), []
        for fed in (self.feed(now) * (1 - keep)).unbind(1):
            state = keep * state + fed
            states.append(state)
        out: Tensor = x + self.read(torch.stack(states, 1) * F.silu(self.gate(now)))
        return out


class Switching:
    """Li et al. 2024: what is trained is put back on its own average when an epoch ends."""

    def __init__(self, run: Run, model: nn.Module, optimizer: Any, share: float) -> None:
        self.run, self.model, self.optimizer, self.share = run, model, optimizer, share
        self.average = {name: t.detach().clone() for name, t in model.state_dict().items()}

    def fit(self, batches: Any, loss: Callable[[nn.Module, Any], Tensor], epochs: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for _ in range(epochs):
            for (rows,) in batches:
                value = loss(self.model, rows)
                update(self.run, doctor, self.optimizer, value, rows)
                for name, t in self.model.state_dict().items():
                    self.average[name].lerp_(t, self.share)
            self.model.load_state_dict(self.average)


@honest("r24j-each-epoch-begins-at-its-average")
def each_epoch_begins_at_its_average(run: Run) -> None:
    """A class of its own, a state-space model of words by Switch EMA (Li et al. 2024). At the end of each epoch the
    weights become their running average and training goes on from there, with the moments as they were: ten times the
    weights move without a gradient, and the loss has a step down at each, and often a step back up behind it."""
    language = Language(run.draw.randrange(999))
    model = nn.Sequential(nn.Embedding(12, 24), Fading(), Fading(), nn.LayerNorm(24), nn.Linear(24, 12))
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    Switching(run, model, optimizer, 0.1).fit(loader(language.rows(192, 20), size=16), next_loss, 10)


class Machine(nn.Module):
    """A restricted Boltzmann machine."""

    def __init__(self, seen: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(hidden, seen))
        self.below, self.above = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def up(self, v: Tensor) -> Tensor:
        return F.linear(v, self.weight, self.above).sigmoid()

    def down(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight.T, self.below).sigmoid()

    def forward(self, v: Tensor) -> Tensor:
        """(rows,) free energies."""
        return -(v @ self.below) - F.softplus(F.linear(v, self.weight, self.above)).sum(1)


class Unrolled(nn.Module):
    """Two machines as an encoder, and the same two backwards; no weight is shared any more."""

    def __init__(self, machines: list[Machine]) -> None:
        super().__init__()
        sizes = [tuple(m.weight.shape) for m in machines]
        self.encoder = nn.ModuleList(nn.Linear(seen, hidden) for hidden, seen in sizes)
        self.decoder = nn.ModuleList(nn.Linear(hidden, seen) for hidden, seen in sizes[::-1])
        self.take(machines)

    @torch.no_grad()
    def take(self, machines: list[Machine]) -> None:
        for m, there, back in zip(machines, self.encoder, list(self.decoder)[::-1], strict=True):
            there.weight.copy_(m.weight)
            there.bias.copy_(m.above)
            back.weight.copy_(m.weight.T)
            back.bias.copy_(m.below)

    def forward(self, v: Tensor) -> Tensor:
        for layer in self.encoder:
            v = layer(v).sigmoid()
        out: Tensor = self.decoder[1](self.decoder[0](v).sigmoid())
        return out


@honest("r24j-machines-stacked-and-unrolled")
def machines_stacked_and_unrolled(run: Run) -> None:
    """Plain loop, an autoencoder for pictures as it was first made deep (Hinton and Salakhutdinov 2006). Two Boltzmann
    machines learn one after the other by contrastive divergence, the second from the states of the first; the loss is a
    difference of free energies that is no measure of anything and hovers at either side of zero, and momentum goes from
    0.5 to 0.9. Then both become four layers of sigmoids with weights of their own, which learn by cross-entropy with
    targets between nought and one, whose floor is far above zero."""
    task = run.draw.randrange(999)

    def drawn(count: int, own: torch.Generator | None = None) -> Tensor:
        return pictures(count, task, own=own)[0].flatten(1)

    machines = [Machine(64, 32), Machine(32, 10)]
    model = Unrolled(machines)
    check = drawn(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(model(check), check)))
    for depth, machine in enumerate(machines):
        sgd = torch.optim.SGD(machine.parameters(), lr=0.1, momentum=0.5, weight_decay=2e-4)
        doctor = run.watch(machine, sgd)
        for step in range(60):
            if step == 10:
                sgd.param_groups[0]["momentum"] = 0.9
            with torch.no_grad():
                v = drawn(64)
                for below in machines[:depth]:
                    v = below.up(v)
                dreamt = machine.down(torch.bernoulli(machine.up(v)))
            update(run, doctor, sgd, machine(v).mean() - machine(dreamt).mean(), v)
    model.take(machines)
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        v = drawn(64)
        update(run, doctor, optimizer, F.binary_cross_entropy_with_logits(model(v), v), v)


@honest("r24j-rewound-and-the-shard-left-out")
def rewound_and_the_shard_left_out(run: Run) -> None:
    """accelerate's own loop with its save_state and load_state, an encoder and a decoder that rewrite words, and a rule
    for spikes as of PaLM (Chowdhery et al. 2022). Some shards of the data are damaged: their answers are those of other
    rows. When the loss is far above the last twenty, weights, moments and schedule go back to the last checkpoint, and
    it goes on with the shard after; so steps are counted twice, the loss falls back, and a shard is never seen."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    language, key = Language(run.draw.randrange(999), sharp=2.5), torch.randperm(12)
    net = Translator(12)

    def drawn(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = language.rows(count, 4, own)
        return source, key[source]

    def loss(model: Any, source: Tensor, target: Tensor) -> Tensor:
        shown = F.pad(target[:, :-1], (1, 0), value=12)
        return F.cross_entropy(model(source, shown).flatten(0, 1), target.flatten())

    check = drawn(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, *check)))
    engine = Accelerator(cpu=True)
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    model, optimizer, schedule = engine.prepare(net, optimizer, schedule)
    damaged = {9, 14}
    with tempfile.TemporaryDirectory() as folder:
        doctor = run.watch(model, optimizer, scheduler=schedule)
        lately: list[float] = []
        for shard in range(19):
            engine.save_state(folder)
            for _ in range(10):
                source, target = drawn(48)
                batch = (source, target.roll(7, 0) if shard in damaged else target)
                value = loss(model, *batch)
                optimizer.zero_grad()
                engine.backward(value)
                optimizer.step()
                schedule.step()
                doctor.step(value, batch)
                run.note(value)
                if len(lately) == 20 and float(value.detach()) > fmean(lately) + 6 * stdev(lately):
                    engine.load_state(folder)
                    break
                lately = [*lately, float(value.detach())][-20:]
