"""Round 24d, mistakes in what is kept: averages, snapshots, remainders, statistics of several ranks."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    judged,
    loader,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, taught, text_outcome
from benchmarks.robustness.loops.round24d_parts import readings, slip
from torch import Tensor, nn
from torch.nn import functional as F


def number_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


@slip("r24d-each-rank-one-hospital")
def each_rank_one_hospital(run: Run, wrong: bool) -> None:
    """Plain loop, four ranks simulated, a CNN with batch norm. Rows stand hospital by hospital, and each rank is given
    an unbroken quarter of the file, one hospital's pictures; running statistics are those of rank 0, the darkest one
    alone. The twin shuffles the rows before they are dealt. Judged by the logarithm of the cross-entropy of other
    pictures of all hospitals."""
    seed = run.draw.randrange(999)
    net = cnn()
    light = torch.tensor([-0.5, -0.1, 0.3, 0.7])[:, None, None, None]

    def hospitals(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(4 * count, seed, own=own)
        return x + light.repeat_interleave(count, 0), y

    check = hospitals(96, apart(1))
    outcome(run, lambda: judged(net, lambda: classify(net, check).log()))
    x, y = hospitals(120)
    order = torch.arange(len(x)) if wrong else torch.randperm(len(x))
    shards = order.chunk(4)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    ranks = [[(m.running_mean.clone(), m.running_var.clone()) for m in norms] for _ in shards]  # type: ignore[union-attr]

    def put(kept: list[tuple[Tensor, Tensor]]) -> None:
        for m, (mean, variance) in zip(norms, kept, strict=True):
            m.running_mean.copy_(mean)  # type: ignore[union-attr]
            m.running_var.copy_(variance)  # type: ignore[union-attr]

    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for _ in range(100):
        optimizer.zero_grad()
        batches, losses = [], []
        for rank, shard in enumerate(shards):
            rows = shard[torch.randint(0, len(shard), (8,))]
            put(ranks[rank])
            loss = classify(net, (x[rows], y[rows])) / len(shards)
            loss.backward()
            ranks[rank] = [(m.running_mean.clone(), m.running_var.clone()) for m in norms]  # type: ignore[union-attr]
            batches.append((x[rows], y[rows]))
            losses.append(loss.detach())
        put(ranks[0])
        optimizer.step()
        total = torch.stack(losses).sum()
        doctor.step(total, batches)
        run.note(total)


@slip("r24d-average-copied-before-the-weights-came")
def average_copied_before_the_weights_came(run: Run, wrong: bool) -> None:
    """Lightning, a CNN taught before on pictures, that now learns on noisier ones from few labels and from its own
    moving average, the teacher on rows without one. The average is a copy made before the old weights were loaded: it
    begins at random ones and moves away from them slowly. The twin copies behind the loading. Judged by the
    cross-entropy of the average."""
    import lightning
    from benchmarks.robustness.loops.round5_tools import fit

    seed = run.draw.randrange(999)
    old = cnn()
    taught(old, lambda: pictures(32, seed), classify, 50)
    net = cnn()
    average = copy.deepcopy(net).requires_grad_(False)
    net.load_state_dict(old.state_dict())
    if not wrong:
        average = copy.deepcopy(net).requires_grad_(False)
    average.eval()

    def noisier(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return x + 0.2 * torch.randn(x.shape, generator=own), y

    class_outcome(run, average, noisier(384, apart(1)))

    class Taught(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y, free = batch
            with torch.no_grad():
                soft = average(free).softmax(1)
            found = net(torch.cat([x, free + 0.1 * torch.randn_like(free)]))
            mine, other = found.split([len(x), len(free)])
            return F.cross_entropy(mine, y) + F.mse_loss(other.softmax(1), soft)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                for kept, now in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
                    if kept.is_floating_point():
                        kept.lerp_(now, 0.01)
                    else:
                        kept.copy_(now)

        def configure_optimizers(self) -> Any:
            return adam(net, 3e-3)

    x, y = noisier(80)
    rows = torch.arange(640) % 80
    fit(run, Taught(), loader(x[rows], y[rows], noisier(640)[0]), 120)


@slip("r24d-last-three-by-name")
def last_three_by_name(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama. Weights are kept every twenty steps in files named by the step; at step 140 the model
    is set to the mean of the last three and goes on for ten steps at a tenth of the rate. Files are sorted as text,
    where step-80 comes last and step-140 before step-20. The twin sorts by number. Judged on other texts."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama()
    text_outcome(run, net, language)
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 151):
            rows = language.rows(8, 16)
            optimizer.zero_grad()
            loss = next_loss(net, rows)
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
            if step % 20 == 0:
                torch.save(net.state_dict(), Path(folder) / f"step-{step}.pt")
            if step == 140:
                files = sorted(Path(folder).glob("*.pt"), key=str if wrong else number_of)[-3:]
                kept = [torch.load(path) for path in files]
                net.load_state_dict({k: torch.stack([one[k] for one in kept]).mean(0) for k in kept[0]})
                optimizer.param_groups[0]["lr"] = 3e-4


@slip("r24d-remainder-of-one-step")
def remainder_of_one_step(run: Run, wrong: bool) -> None:
    """Plain loop, two workers simulated, an MLP. Each sends the largest hundredth of the numbers of its gradient with
    what was left over, and keeps the rest. What is kept is the gradient less what was sent, and what was left over
    before is forgotten. The twin keeps the sum less what was sent. Judged by the variance that isn't explained on other
    rows."""
    seed = run.draw.randrange(999)
    net = readings()
    number_outcome(run, net, table(384, seed, apart(1)), log=True)
    weights = list(net.parameters())
    left = [[torch.zeros_like(w) for w in weights] for _ in range(2)]
    shards = [table(240, seed) for _ in range(2)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        total, batches, losses = [torch.zeros_like(w) for w in weights], [], []
        for worker, (x, y) in enumerate(shards):
            rows = torch.randint(0, len(x), (16,))
            loss = F.mse_loss(net(x[rows]).flatten(), y[rows])
            for i, slope in enumerate(torch.autograd.grad(loss, weights)):
                whole = slope + left[worker][i]
                least = whole.abs().flatten().topk(max(1, whole.numel() // 100)).values[-1]
                sent = torch.where(whole.abs() >= least, whole, 0.0)
                left[worker][i] = (slope if wrong else whole) - sent
                total[i] += sent / 2
            batches.append((x[rows], y[rows]))
            losses.append(loss.detach())
        for w, slope in zip(weights, total, strict=True):
            w.grad = slope
        optimizer.step()
        mean = torch.stack(losses).mean()
        doctor.step(mean, batches)
        run.note(mean)
