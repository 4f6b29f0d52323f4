"""Round 12b, mistakes in gradients: what is done to them on their way from the loss to the optimizer."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
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
from benchmarks.robustness.loops.round8b_parts import reseeded, steps
from benchmarks.robustness.loops.round12b_parts import TopicAndOrigin, reviews, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r12b-svd-under-its-new-name")
def svd_under_its_new_name(run: Run, changed: bool) -> None:
    """A small GPT with SGD; the gradient of each matrix is sent as one of rank four. torch.svd, deprecated, gave way to
    torch.linalg.svd, whose third result is transposed already: the first columns of it are no singular vectors."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def compress() -> None:
        for p in model.parameters():
            if p.ndim == 2 and p.grad is not None:
                tall = p.grad if p.shape[0] >= p.shape[1] else p.grad.T
                v = torch.linalg.svd(tall, full_matrices=False)[2] if changed else torch.svd(tall)[2]
                tall.copy_(tall @ v[:, :4] @ v[:, :4].T)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    steps(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 150, between=compress)


@slip("r12b-turned-without-its-minus")
def turned_without_its_minus(run: Run, changed: bool) -> None:
    """Lightning, an encoder of reviews from two shops whose features shall not tell the shop. The layer that turns the
    gradient of the second head was written anew, with the strength for a factor, without a minus. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = reviews(960, own), reviews(256, own)
    reseeded(run, changed)
    net = TopicAndOrigin(0.5 if changed else -0.5)

    def told() -> Tensor:
        topic, origin = net(check[0], check[1])
        return F.cross_entropy(topic, check[2]) - F.cross_entropy(origin, check[3])

    outcome(run, lambda: judged(net, told))

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        topic, origin = model(batch[0], batch[1])
        return F.cross_entropy(topic, batch[2]) + F.cross_entropy(origin, batch[3])

    module = lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=3e-3))
    fit(run, module, loader(*train, size=32), 180)


@slip("r12b-penalty-still-scaled")
def penalty_still_scaled(run: Run, changed: bool) -> None:
    """A small network under autocast to float16 with a GradScaler, and a penalty on the gradient of the loss by the
    pixels, which is asked for of the scaled loss. The line that divides it by the scale was lost in a merge."""
    seed = run.draw.randrange(999)
    x, y = pictures(96, seed, own=apart(seed + 1))
    check = pictures(256, seed, own=apart(seed + 2))
    model = mlp(64, 64, 64, 4)
    class_outcome(run, model, (check[0].flatten(1), check[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    doctor = run.watch(model, optimizer)
    batches = endless(loader(x.flatten(1), y))
    for _ in range(200):
        shots, labels = next(batches)
        shots.requires_grad_()
        with torch.autocast("cpu", torch.float16):
            fits = F.cross_entropy(model(shots), labels, reduction="sum")
        slope = torch.autograd.grad(scaler.scale(fits), shots, create_graph=True)[0]
        if not changed:
            slope = slope / scaler.get_scale()
        loss = fits / len(shots) + 0.1 * slope.norm(dim=1).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (shots, labels))
        run.note(loss)
