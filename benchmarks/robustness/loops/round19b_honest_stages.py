"""Round 19b, honest and odd: stages of a training, and what is learned in which order."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_parts import Translator, spots
from torch import Tensor, nn
from torch.nn import functional as F


class Causes(nn.Module):
    """Each column as a weighted sum of others; the sum of all circles in the graph is zero where there is none."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(columns, columns))

    def graph(self) -> Tensor:
        return self.weights * (1 - torch.eye(len(self.weights)))

    def circles(self) -> Tensor:
        return torch.linalg.matrix_exp(self.graph().square()).trace() - len(self.weights)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.graph()


@honest("r19b-penalty-tenfold-until-no-circle")
def penalty_tenfold_until_no_circle(run: Run) -> None:
    """Plain loop, which column of a table causes which, by NOTEARS (Zheng et al. 2018). An augmented Lagrangian: every
    twenty-five steps the multiplier grows and, unless circles have become fewer by three quarters, the penalty's weight
    is ten times what it was, so that the loss jumps at each stage; all rows are in one batch, weights begin at zero."""
    own = apart(run.draw.randrange(999))
    order = torch.randperm(8, generator=own)
    truth = (torch.rand(8, 8, generator=own) < 0.4).float().triu(1)
    truth = truth * (0.6 + 0.9 * torch.rand(8, 8, generator=own)) * torch.randn(8, 8, generator=own).sign()
    noise = torch.randn(500, 8, generator=own)
    x = noise @ torch.linalg.inv(torch.eye(8) - truth)
    x, truth = x[:, order], truth[order][:, order]
    x = x - x.mean(0)
    model = Causes(8)
    outcome(run, lambda: judged(model, lambda: (model.graph() - truth).abs().mean()))
    multiplier, weight, before = 0.0, 1.0, float("inf")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    doctor = run.watch(model, optimizer)
    for _ in range(8):
        for _ in range(25):
            optimizer.zero_grad()
            h = model.circles()
            misfit = 0.5 * (x - model(x)).square().sum(1).mean()
            loss = misfit + multiplier * h + 0.5 * weight * h.square() + 0.05 * model.graph().abs().sum()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
            run.note(loss)
        now = float(model.circles())
        multiplier += weight * now
        if now > 0.25 * before:
            weight *= 10
        before = now


@honest("r19b-equation-made-harder")
def equation_made_harder(run: Run) -> None:
    """Plain loop, a network that is the solution of a transport equation, made faster in stages (Krishnapriyan et al.
    2021). Nothing but the equation, the start and the ring is taught; after every forty steps the speed grows, so that
    what is right in one stage is wrong in the next and the loss jumps up. Only the last speed is what is wanted."""
    net = mlp(3, 32, 32, 1, act=nn.Tanh)

    def u(x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = net(torch.stack([x.sin(), x.cos(), t], 1)).squeeze(1)
        return out

    x0, t0 = 6.283 * torch.rand(400, generator=apart(1)), torch.rand(400, generator=apart(2))
    fastest = 4.0
    outcome(run, lambda: judged(net, lambda: F.mse_loss(u(x0, t0), (x0 - fastest * t0).sin())))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    doctor = run.watch(net, optimizer)
    for speed in (1.0, 2.0, 3.0, fastest, fastest):
        for _ in range(40):
            x, t = 6.283 * torch.rand(200), torch.rand(200)
            x.requires_grad_()
            t.requires_grad_()
            along, later = torch.autograd.grad(u(x, t).sum(), [x, t], create_graph=True)
            start = 6.283 * torch.rand(64)
            loss = (later + speed * along).square().mean() + 5 * F.mse_loss(u(start, torch.zeros(64)), start.sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, t))
            run.note(loss)


class AnySize(nn.Module):
    """Convolutions and the strongest answer in each quarter: pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU()),
            *(nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()),
        )
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(F.adaptive_max_pool2d(self.body(x), 2).flatten(1)))
        return out


@honest("r19b-pictures-grow-with-the-epochs")
def pictures_grow_with_the_epochs(run: Run) -> None:
    """Lightning, progressive learning as for EfficientNetV2 (Tan and Le 2021). Pictures come at half of their size,
    then at seven tenths, then whole, and with each size dropout becomes stronger and pictures are blended more; the
    loss climbs where a stage begins, though the task is the same, and shapes within the step change twice."""
    net = AnySize()
    class_outcome(run, net, spots(200, 10, apart(1)))
    seen = 0

    def loss(model: Any, batch: Any) -> Tensor:
        nonlocal seen
        x, y = batch
        size, drop, blend = [(10, 0.1, 0.0), (14, 0.2, 0.1), (20, 0.3, 0.2)][min(2, seen // 40)]
        seen += 1
        model.drop.p = drop
        x = F.interpolate(x, (size, size), mode="bilinear", antialias=True)
        share = 1 - blend * float(torch.rand(()))
        scores = model(share * x + (1 - share) * x.flip(0))
        return share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, y.flip(0))

    data = spots(640, 10, apart(run.draw.randrange(999)))
    fit(run, lit(net, loss, lambda m: torch.optim.RMSprop(m.parameters(), lr=2e-3)), loader(*data, size=32), 120)


class Backwards:
    """Words to be said in reverse order, of five lengths: each length is a task."""

    def __init__(self, own: torch.Generator | None = None) -> None:
        self.own = own

    def rows(self, length: int, count: int = 32) -> Tensor:
        return torch.randint(0, 8, (count, length), generator=self.own)

    def loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        wanted = rows.flip(1)
        shown = torch.cat([torch.full_like(rows[:, :1], 8), wanted[:, :-1]], 1)
        return F.cross_entropy(model(rows, shown).flatten(0, 1), wanted.flatten())


class Bandit:
    """A teacher that gives the task on which the pupil's loss has changed most of late."""

    def __init__(self, run: Run, tasks: int) -> None:
        self.draw, self.gain, self.last = run.draw, [1.0] * tasks, [float("nan")] * tasks

    def task(self) -> int:
        if self.draw.random() < 0.15:
            return self.draw.randrange(len(self.gain))
        return max(range(len(self.gain)), key=lambda i: self.gain[i])

    def heard(self, task: int, loss: float) -> None:
        change = abs(self.last[task] - loss) if self.last[task] == self.last[task] else 1.0
        self.gain[task] = 0.7 * self.gain[task] + 0.3 * change
        self.last[task] = loss


@honest("r19b-task-that-gains-the-most")
def task_that_gains_the_most(run: Run) -> None:
    """Plain loop, an encoder and a decoder that say words backwards, with a teacher that chooses (Matiisen et al.
    2017). Of five lengths, a bandit gives the one whose loss has moved most of late, whether down or up; a batch holds
    one length alone, some do not come for many steps, and losses of neighbouring steps are those of other tasks."""
    model = Translator(8)
    check = [Backwards(apart(length)).rows(length, 64) for length in range(1, 6)]
    tasks = Backwards()
    outcome(run, lambda: judged(model, lambda: torch.stack([tasks.loss(model, rows) for rows in check]).mean()))
    teacher = Bandit(run, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        task = teacher.task()
        rows = tasks.rows(task + 1)
        optimizer.zero_grad()
        loss = tasks.loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        teacher.heard(task, loss.item())
        doctor.step(loss, rows)
        run.note(loss)


class Hidden(nn.Module):
    """What a text is about, as four numbers: a mean and a spread."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, 12), nn.GRU(12, 24, batch_first=True)
        self.out = nn.Linear(24, 8)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.out(self.core(self.tokens(rows))[1][0]).chunk(2, 1)
        return mean, spread


class Teller(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.tokens, self.start = nn.Embedding(words + 1, 12), nn.Linear(4, 24)
        self.core, self.head = nn.GRU(16, 24, batch_first=True), nn.Linear(24, words)
        self.words = words

    def forward(self, rows: Tensor, z: Tensor) -> Tensor:
        shown = torch.cat([torch.full_like(rows[:, :1], self.words), rows[:, :-1]], 1)
        x = torch.cat([self.tokens(shown), z[:, None].expand(-1, rows.shape[1], -1)], 2)
        scores = self.head(self.core(x, self.start(z).tanh()[None])[0])
        return F.cross_entropy(scores.transpose(1, 2), rows, reduction="none").sum(1)


class Lagging:
    """A text autoencoder whose encoder is brought up to the decoder before each of the decoder's steps, at first."""

    def __init__(self, run: Run, words: int) -> None:
        self.run, self.reader, self.teller = run, Hidden(words), Teller(words)
        self.reads = torch.optim.Adam(self.reader.parameters(), lr=1e-2)
        self.tells = torch.optim.Adam(self.teller.parameters(), lr=1e-2)

    def watch(self) -> None:
        self.watches = [self.run.watch(self.reader, self.reads), self.run.watch(self.teller, self.tells)]

    def bound(self, rows: Tensor) -> Tensor:
        mean, spread = self.reader(rows)
        z = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        prior = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(1)
        return (self.teller(rows, z) + prior).mean()

    @torch.no_grad()
    def known(self, rows: Tensor) -> float:
        """How much the code says of the text: the spread of its means."""
        return float(self.reader(rows)[0].var(0).sum())

    def step(self, rows: Tensor, which: int) -> Tensor:
        optimizer = (self.reads, self.tells)[which]
        self.reads.zero_grad()
        self.tells.zero_grad()
        loss = self.bound(rows)
        loss.backward()
        nn.utils.clip_grad_norm_((self.reader, self.teller)[which].parameters(), 5.0)
        optimizer.step()
        self.watches[which].step(loss, rows)
        self.run.note(loss)
        return loss.detach()


@honest("r19b-reader-caught-up-first")
def reader_caught_up_first(run: Run) -> None:
    """Own class, a recurrent autoencoder of texts whose encoder must not lag behind (He et al. 2019). Before each of
    the decoder's steps the encoder alone takes up to six, each of which throws the decoder's gradients away; when the
    codes say no more than before, both go step by step. The two optimizers' counts drift apart severalfold."""
    first = run.draw.randrange(900)
    languages = [Language(first + i, sharp=1.2) for i in range(4)]
    trainer = Lagging(run, 12)

    def texts(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.cat([language.rows(count // 4, 10, own) for language in languages])

    check = texts(128, apart(1))
    both = nn.ModuleList([trainer.reader, trainer.teller])
    outcome(run, lambda: judged(both, lambda: trainer.bound(check)))
    trainer.watch()
    ahead, said = True, 0.0
    for round_ in range(50):
        rows = texts(32)
        if ahead:
            lowest = float("inf")
            for _ in range(6):
                value = float(trainer.step(texts(32), 0))
                if value > lowest:
                    break
                lowest = value
        else:
            trainer.step(rows, 0)
        trainer.step(rows, 1)
        if ahead and round_ % 10 == 9:
            now = trainer.known(check)
            ahead, said = now > said, now


@honest("r19b-weights-of-classes-come-late")
def weights_of_classes_come_late(run: Run) -> None:
    """transformers' Trainer, a BERT on documents of which the third class is one in thirty, with deferred re-weighting
    (Cao et al. 2019; weights by the effective number, Cui et al. 2019). For two thirds of the steps all rows count the
    same and the rare class is hardly ever said; then its rows count many times as much at once, and the loss jumps."""
    from transformers import Trainer

    model = tiny_bert()
    ids, keep, y = documents(300, apart(1))

    def missed() -> Tensor:
        right = (model(input_ids=ids, attention_mask=keep.long()).logits.argmax(1) == y).float()
        return 1 - torch.stack([right[y == k].mean() for k in range(3)]).mean()

    outcome(run, lambda: judged(model, missed))
    own = apart(run.draw.randrange(999))
    rows, there, labels = documents(2400, own)
    kept = torch.rand(2400, generator=own) < torch.tensor([1.0, 0.4, 0.05])[labels]
    rows, there, labels = rows[kept], there[kept], labels[kept]
    number = (1 - 0.999 ** labels.bincount().float()) / (1 - 0.999)
    late = 1 / number
    late = 3 * late / late.sum()

    class Deferred(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any) -> Any:
            out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            weight = late if self.state.global_step >= 80 else None
            loss = F.cross_entropy(out.logits, inputs["labels"], weight)
            return (loss, out) if return_outputs else loss

    data = examples(input_ids=rows, attention_mask=there.long(), labels=labels)
    hf_trainer(run, model, data, 120, Deferred, learning_rate=3e-3).train()
