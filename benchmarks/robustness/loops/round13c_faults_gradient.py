"""Round 13c, mistakes in the gradient."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
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
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.round13c_parts import Stages, slip
from torch import Tensor, nn
from torch.nn import functional as F


class Siamese(nn.Module):
    """An encoder of pictures with a projection, and a network that predicts one view's projection from another's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = cnn(classes=16)
        self.project = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
        self.predict = mlp(16, 8, 16, norm=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.body(x))
        return out


@slip("r13c-target-branch-not-detached")
def target_branch_not_detached(run: Run, wrong: bool) -> None:
    """Lightning, pictures without labels by two views (SimSiam). One view's projection predicts the other's, which
    should be a constant; detach() was lost when the loss became a function, and both run to one point. Judged by a
    linear map from the projections to the classes. The twin detaches."""
    seed = run.draw.randrange(999)
    net = Siamese()
    (x, y), (new_x, new_y) = pictures(256, seed, own=apart(1)), pictures(256, seed, own=apart(2))

    def probed() -> Tensor:
        a, b = F.normalize(net(x), dim=1), F.normalize(net(new_x), dim=1)
        wanted = F.one_hot(y, 4).float() - 0.25
        middle = a.mean(0)
        a, b = a - middle, b - middle
        fitted = b @ torch.linalg.solve(a.T @ a + 2.56 * torch.eye(16), a.T @ wanted)
        return F.mse_loss(fitted, F.one_hot(new_y, 4).float() - 0.25)

    outcome(run, lambda: judged(net, probed))

    def loss(net: Any, batch: Any) -> Tensor:
        one, two = (net((batch[0] + 0.1 * torch.randn_like(batch[0])).clamp(0, 1)) for _ in range(2))
        towards = (one, two) if wrong else (one.detach(), two.detach())
        pairs = ((net.predict(one), towards[1]), (net.predict(two), towards[0]))
        return torch.stack([-F.cosine_similarity(a, b).mean() for a, b in pairs]).mean()

    data = loader(pictures(640, seed)[0], size=32)
    fit(run, lit(net, loss, lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)), data, 120)


class HeadAndLoss(torch.autograd.Function):
    """Head and cross-entropy in one, whose gradients are worked out on the way forward, so that logits need not be
    kept; `alone` hands them on as they are, whatever the loss was multiplied by."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, alone: bool) -> Tensor:
        logits = hidden @ head.T
        loss = F.cross_entropy(logits, labels)
        off = (logits.softmax(1) - F.one_hot(labels, len(head))) / len(labels)
        ctx.alone = alone
        ctx.save_for_backward(off @ head, off.T @ hidden)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_hidden, of_head = ctx.saved_tensors
        factor = 1.0 if ctx.alone else gradient
        return of_hidden * factor, of_head * factor, None, None


@slip("r13c-fused-loss-ignores-its-weight")
def fused_loss_ignores_its_weight(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT that learns from a larger one and, with a weight of 0.1, from texts with many wrong
    words. Head and cross-entropy of the texts are one function of one's own with its own backward, which does not
    multiply by the gradient that comes in: their weight is in the loss and not in the gradients. The twin
    multiplies."""
    language = Language(run.draw.randrange(999))
    teacher, student = Decoder(12, layers=2), Decoder(12, width=24)
    taught(teacher, lambda: language.rows(16, 24), next_loss, 200)
    language_outcome(run, student, language)
    head, student_body = student.head, student
    teacher.requires_grad_(False)

    def hidden(rows: Tensor) -> Tensor:
        x = student_body.tokens(rows) + student_body.places(torch.arange(rows.shape[1]))
        for block in student_body.blocks:
            x = block(x)
        out: Tensor = student_body.norm(x)
        return out

    def batch() -> dict[str, Tensor]:
        rows = language.rows(16, 24)
        other = torch.rand(rows.shape) < 0.5
        return {"input_ids": rows, "labels": torch.where(other, torch.randint(0, 4, rows.shape), rows)}

    def loss(b: dict[str, Tensor]) -> Tensor:
        ids = b["input_ids"][:, :-1]
        x = hidden(ids)
        softened = teacher(ids).softmax(-1)
        distilled = -(softened * head(x).log_softmax(-1)).sum(-1).mean()
        texts: Tensor = HeadAndLoss.apply(x.flatten(0, 1), head.weight, b["labels"][:, 1:].flatten(), wrong)
        return 0.9 * distilled + 0.1 * texts

    plain(run, student, batch, loss, 140)


@slip("r13c-copies-of-the-table-drift")
def copies_of_the_table_drift(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT in two stages as in a pipeline. First and last stage have a copy each of the one table
    of words, and their gradients are added up; the call stands before the backward pass, where there is nothing to
    add, and the copies go apart. The file keeps the first. The twin calls it after the backward pass."""
    language = Language(run.draw.randrange(999))
    model = Stages(12)
    check = language.rows(96, 24, apart(901))

    def as_saved() -> Tensor:
        logits = model.hidden(check[:, :-1]) @ model.table.T
        return F.cross_entropy(logits.flatten(0, 1), check[:, 1:].flatten())

    outcome(run, lambda: judged(model, as_saved))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)

    def add_up() -> None:
        one, two = model.table.grad, model.table_of_the_last.grad
        if one is not None and two is not None:
            one.add_(two)
            two.copy_(one)

    for _ in range(120):
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        if wrong:
            add_up()
        loss.backward()
        if not wrong:
            add_up()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
