"""Public issues about resuming, averaged weights and random numbers."""

import copy
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_lightning import backbone, pictures
from benchmarks.robustness.loops.public_issues_parts import Decoder, outcome, step_down
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

FAMILY = "public issues: resuming and state"


def rows_of_text(run: Run, count: int) -> Tensor:
    """Disjoint rows of text, and their numbers in front."""
    tokens = corpus(run.draw.randrange(1000))
    block = tokens[: count * 33].view(count, 33)
    return torch.cat([torch.arange(count)[:, None], block], 1)


def step(run: Run, doctor: Any, model: nn.Module, optimizer: Any, rows: Tensor) -> None:
    x, y = rows[:, 1:-1], rows[:, 2:]
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    doctor.step(loss, (x, y))
    run.note(loss)


@fault(
    "issue-accelerate-4071",
    FAMILY,
    (r"order|shuffl|epoch|seed|sampler|rows|batch|example", r"again|repeat|twice|same|seen|duplicat|already"),
)
def resumed_in_the_first_epochs_order(run: Run, slip: bool) -> None:
    """huggingface/accelerate pull request 4071: on a resume in the middle of a later epoch, skip_first_batches built a
    new loader whose own epoch counter began at nought and set the sampler's epoch back with it: the rest of that
    epoch came in the first epoch's order, so rows that had been seen came again and others never. The outcome is the
    share of the second epoch's rows that were drawn more than once. Accelerate's loaders, as they shuffle by epoch."""
    from accelerate import Accelerator
    from accelerate.data_loader import SeedableRandomSampler

    rows = rows_of_text(run, 480)
    sampler = SeedableRandomSampler(rows, data_seed=11)
    accelerator = Accelerator(cpu=True)
    bare = Decoder(VOCABULARY)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=2e-3)
    model, prepared = accelerator.prepare(bare, optimizer)
    doctor = run.watch(bare, optimizer)
    seen: list[int] = []

    def epoch(number: int, first: int, last: int) -> None:
        sampler.set_epoch(number)
        for index, batch in enumerate(DataLoader(rows, 8, sampler=sampler)):
            if first <= index < last:
                if number != 0 or first > 0:
                    seen.extend(batch[:, 0].tolist())
                step(run, doctor, model, prepared, batch)

    epoch(0, 0, 60)
    seen.clear()
    epoch(1, 0, 30)
    kept = copy.deepcopy(bare.state_dict()), copy.deepcopy(optimizer.state_dict())
    bare.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])  # the run stops here and goes on from its checkpoint
    epoch(0 if slip else 1, 30, 60)
    second = list(seen)
    outcome(run, lambda: 1 - len(set(second)) / len(second))
    epoch(2, 0, 30)


@fault(
    "issue-gptneox-308",
    FAMILY,
    (r"data|batch|rows|loader|sampl|example", r"again|repeat|seen|revisit|twice|same|already|rewind|duplicat"),
)
def fast_forward_in_steps(run: Run, slip: bool) -> None:
    """EleutherAI/gpt-neox pull request 308: on resuming with gradient accumulation the loader was moved on by the
    number of optimizer steps, not of micro-batches, so the run read data again that it had just seen. The outcome
    is the share of rows after the resume that were read before it, in a run of less than one epoch."""
    rows = rows_of_text(run, 900)[torch.randperm(900)]
    pieces, half = 4, 45
    model = Decoder(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    read: list[list[int]] = [[], []]
    for part in (0, 1):
        if part:
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        consumed = part * half * (1 if slip else pieces)
        batches = iter(rows.split(2)[consumed:])
        for _ in range(half):
            optimizer.zero_grad()
            micro, total = [], 0.0
            for _ in range(pieces):
                batch = next(batches)
                read[part].extend(batch[:, 0].tolist())
                x, y = batch[:, 1:-1], batch[:, 2:]
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / pieces
                loss.backward()
                micro.append((x, y))
                total += float(loss.detach())
            optimizer.step()
            doctor.step(total, micro)
            run.note(total)
    outcome(run, lambda: len(set(read[1]) & set(read[0])) / len(read[1]))


@fault(
    "issue-megatron-bridge-4601",
    FAMILY,
    (r"data|rows|sampl|epoch|batch|example", r"again|repeat|tail|same|never|subset|memor|seen|over and over"),
)
def offset_in_every_epoch(run: Run, slip: bool) -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull request 4601 (issue 4565): the fine-tuning sampler kept the count of samples
    consumed at the resume and skipped that many at the start of every later epoch too, so after a resume late in an
    epoch each epoch replayed only the data's tail: training loss too low, the rest forgotten. Outcome: loss on the
    rows that were never shown again."""
    rows = rows_of_text(run, 320)
    model = Decoder(VOCABULARY, width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    first = rows[:256]
    for batch in first[torch.randperm(256)].split(8):  # before the checkpoint, elsewhere
        optimizer.zero_grad()
        F.cross_entropy(model(batch[:, 1:-1]).flatten(0, 1), batch[:, 2:].flatten()).backward()
        optimizer.step()
    doctor = run.watch(model, optimizer)

    def forgotten() -> float:
        return float(F.cross_entropy(model(first[:, 1:-1]).flatten(0, 1), first[:, 2:].flatten()))

    outcome(run, forgotten)
    consumed = 256
    updates = 0
    while updates < 160:
        order = torch.arange(320)[consumed:]
        if not slip:
            consumed = 0
        for batch in rows[order].split(8):
            step(run, doctor, model, optimizer, batch)
            updates += 1
            if updates == 160:
                break


@fault(
    "issue-pytorch-84053",
    FAMILY,
    (r"buffer|running|batch ?norm|statistic", r"averag|\bema\b|swa|copy|stale|sync|never|not (updat|copied)|behind"),
)
def averaged_weights_with_first_buffers(run: Run, slip: bool) -> None:
    """pytorch/pytorch issue 84053: AveragedModel deep-copies the model at its start, and with use_buffers off it then
    averaged the parameters only: its buffers stayed those of the first day. An exponential average with batch
    normalization, evaluated, has fresh weights and untrained running statistics. Repaired: buffers are copied."""
    net = nn.Sequential(backbone(), nn.Linear(24, 4))
    kept = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    doctor = run.watch(net, optimizer)
    held = pictures(128, 1.5, 0.7)
    stale = {n: b.clone() for n, b in kept.module.named_buffers()}

    def evaluated() -> float:
        kept.eval()
        return float(F.cross_entropy(kept(held[0]), held[1]))

    outcome(run, evaluated)
    for _ in range(80):
        x, y = pictures(24, 1.5, 0.7)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.update_parameters(net)
        with torch.no_grad():
            for name, buffer in kept.module.named_buffers():
                buffer.copy_(stale[name] if slip else net.get_buffer(name))
        doctor.step(loss, (x, y))
        run.note(loss)


class Augmented:
    """Pictures with noise and a shift from NumPy, as four forked workers would draw them."""

    def __init__(self, pictures_: Tensor, labels: Tensor, own_seeds: bool) -> None:
        self.pictures, self.labels, self.own_seeds = pictures_, labels, own_seeds
        self.drawn: list[float] = []

    def epoch(self, number: int) -> Any:
        """Batches of sixteen from four workers in turn; a fork takes over NumPy's state as it is."""
        workers = 4
        states = [np.random.RandomState(100 * number + w if self.own_seeds else 5) for w in range(workers)]
        for index, rows in enumerate(torch.randperm(len(self.labels)).split(16)):
            state = states[index % workers]
            x = self.pictures[rows].clone()
            for row in range(len(rows)):
                scale, across = state.uniform(0.3, 3.0), int(state.randint(-4, 5))
                self.drawn.append(float(scale))
                x[row] = x[row].roll(across, -1) * scale
            yield x, self.labels[rows]


@fault("issue-pytorch-5059", FAMILY, (r"augment|random|noise|numpy|seed", r"same|identical|repeat|again|duplicat"))
def workers_draw_the_same(run: Run, slip: bool) -> None:
    """pytorch/pytorch issue 5059: the loader's forked workers take over NumPy's state from the parent and are not
    seeded apart, so augmentations drawn with NumPy are the same numbers in every worker, and, as each epoch forks
    anew, in every epoch. The outcome is the share of draws that had been drawn before."""
    x, y = pictures(128, 1.0, 0.0)
    data = Augmented(x, y, own_seeds=not slip)
    net = nn.Sequential(backbone(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    scheduler = step_down(optimizer, 80)
    doctor = run.watch(net, optimizer, scheduler=scheduler)
    outcome(run, lambda: 1 - len(set(data.drawn)) / len(data.drawn))
    for number in range(10):
        for batch, labels in data.epoch(number):
            loss = F.cross_entropy(net(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (batch, labels))
            scheduler.step()
            run.note(loss)
