"""Mistakes of the optimizer, its schedule and clipping."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    straight,
    table,
    tiny_gpt2,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

FAMILY = "optimizer, schedule and clipping"


@fault(
    "r5-zero-grad-missing",
    FAMILY,
    (
        r"gradient|zero_grad",
        r"accumulat|never (cleared|zeroed|set to zero)|not (cleared|zeroed|reset)|zero_grad|sum|pile|add",
    ),
)
def zero_grad_missing(run: Run, wrong: bool) -> None:
    """zero_grad() is forgotten, and every step adds to all gradients before it."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = language.rows(16, 20)
        if not wrong:
            optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@fault(
    "r5-cleared-before-the-step",
    FAMILY,
    (
        r"gradient|zero_grad",
        r"before (the )?(step|update|optimizer)|cleared|zero_grad|without gradient|no gradient|None|do(es)? not (move|change)|unchanged|not updated|never (move|update|change)|only (by )?(weight )?decay|zero",
    ),
)
def cleared_before_the_step(run: Run, wrong: bool) -> None:
    """backward(), zero_grad(), step(): the optimizer finds nothing to do."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(50):
        rows = language.rows(16, 20)
        if not wrong:
            optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        if wrong:
            optimizer.zero_grad()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@fault(
    "r5-cosine-counted-in-epochs",
    FAMILY,
    (r"rate|schedul|\blr\b", r"cycl|oscillat|up and down|T_max|rises|period|restart|swing|again|half"),
)
def cosine_counted_in_epochs(run: Run, wrong: bool) -> None:
    """CosineAnnealingLR gets the number of epochs and is stepped after every batch: the rate swings up and down every
    twenty batches. The twin gives it the number of batches."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, straight(256, seed, apart(1), 0.0), log=True)
    epochs, steps = 10, 142
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs if wrong else steps)
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, optimizer, lambda: straight(8, seed), loss, steps, scheduler, clip=3.0)


@fault(
    "r5-warmup-in-epochs",
    FAMILY,
    (
        r"rate|schedul|\blr\b|warm",
        r"epoch|interval|never|too (small|low|slow)|still|constant|does not (move|change|rise)|stuck|not (yet )?(reach|complet|finish)",
    ),
)
def warmup_in_epochs(run: Run, wrong: bool) -> None:
    """Lightning: a warmup written for batches is returned bare, and Lightning steps it once an epoch; the rate stays at
    a fortieth. The twin says interval='step'."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 4))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(480, seed)

    def optimizers(net: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))
        return [optimizer], [scheduler if wrong else {"scheduler": scheduler, "interval": "step"}]

    module = lit(model, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), optimizers)
    fit(run, module, loader(x, y), 90)


class Patches(nn.Module):
    """A small vision transformer: patches of 2 by 2, one block of attention, the mean."""

    def __init__(self, classes: int = 4, channels: int = 1) -> None:
        super().__init__()
        self.embed, self.places = nn.Conv2d(channels, 24, 2, 2), nn.Parameter(0.1 * torch.randn(16, 24))
        self.norm, self.attention = nn.LayerNorm(24), Attention(24, causal=False)
        self.feed, self.head = nn.Sequential(nn.LayerNorm(24), mlp(24, 48, 24)), nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places
        x = x + self.attention(self.norm(x))
        out: Tensor = self.head((x + self.feed(x)).mean(1))
        return out


@fault(
    "r5-steps-every-batch",
    FAMILY,
    (
        r"rate|schedul|\blr\b",
        r"decay|too (fast|early|soon|small|low)|collaps|vanish|every (batch|step)|epoch|nothing|drop|zero|fell|falls",
    ),
)
def steps_every_batch(run: Run, wrong: bool) -> None:
    """StepLR(3, 0.3) is meant for epochs and stepped after every batch: after thirty batches the rate is 2e-8. The
    twin steps it after every epoch."""
    seed = run.draw.randrange(999)
    model = Patches()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    data = loader(*pictures(240, seed), size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = lr_scheduler.StepLR(optimizer, 3, 0.3)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(6):
        for x, y in data:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)
            if wrong:
                scheduler.step()
        if not wrong:
            scheduler.step()


@fault(
    "r5-head-after-the-optimizer",
    FAMILY,
    (
        r"head|fc|\b4\b|last|classif|Linear|weight",
        r"optimizer",
        r"not in|missing|does not (hold|know|have|contain|own)|no group|never (update|move|change)|without|not (given|updated|held|registered|covered)|outside|unknown",
    ),
)
def head_after_the_optimizer(run: Run, wrong: bool) -> None:
    """Transfer: the optimizer is made first, then the head is replaced for the new classes; the optimizer still holds
    the old head. The twin replaces first."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(*list(cnn(drop=0.0))[:-1], nn.Linear(64, 10))

    def replace() -> None:
        model[-1] = nn.Linear(64, 4)

    if not wrong:
        replace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if wrong:
        replace()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    train(run, model, optimizer, lambda: pictures(16, seed), loss, 60)


@fault(
    "r5-unfrozen-too-late",
    FAMILY,
    (
        r"optimizer",
        r"not in|missing|does not (hold|know|have|contain|own)|no group|never (update|move|change)|not (given|updated|held|registered|covered)|outside|unfro|requires_grad",
    ),
)
def unfrozen_too_late(run: Run, wrong: bool) -> None:
    """The optimizer is built from what requires gradients while the body is frozen; the body is unfrozen after some
    epochs, but the optimizer never hears of it. The twin adds a group."""
    model = Classifier()
    class_outcome(run, model, documents(256, apart(2)))
    body = [p for n, p in model.named_parameters() if not n.startswith("head")]
    for p in body:
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(90):
        if step == 20:
            for p in body:
                p.requires_grad_(True)
            if not wrong:
                optimizer.add_param_group({"params": body, "lr": 1e-3})
        x, keep, y = documents(16)
        loss = F.cross_entropy(model(x, keep), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, keep, y))
        run.note(loss)


@fault(
    "r5-decay-inside-adam",
    FAMILY,
    (r"decay|L2|regular", r"coupled|decoupled|AdamW|L2|inside|Adam|dominat|larger than"),
)
def decay_inside_adam(run: Run, wrong: bool) -> None:
    """torch.optim.Adam with the weight decay of an AdamW recipe: 0.1 is added to the gradient and normalised with it,
    and drives out what the loss says. The twin is AdamW."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    kind = torch.optim.Adam if wrong else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=4e-3, weight_decay=0.1)
    train(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 100)


@fault(
    "r5-betas-swapped",
    FAMILY,
    (r"beta|momentum|moment", r"swap|beta1|first|0\.999|order|larger|exchang|slow|long|momentum"),
)
def betas_swapped(run: Run, wrong: bool) -> None:
    """Adam's betas in the wrong order, (0.999, 0.9): a momentum of a thousand steps over a scale of ten."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.999, 0.9) if wrong else (0.9, 0.999))
    train(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 110)


@fault(
    "r5-plateau-of-accuracy",
    FAMILY,
    (
        r"rate|plateau|schedul|\blr\b",
        r"mode|min|max|improv|accuracy|metric|fell|reduc|drop|decay|collaps|too (early|soon|small|low|fast)",
    ),
)
def plateau_of_accuracy(run: Run, wrong: bool) -> None:
    """ReduceLROnPlateau is fed the accuracy but left at mode='min': every improvement counts as none, and the rate is
    cut again and again. The twin says 'max'."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 4))
    check = pictures(128, seed, own=apart(1))
    class_outcome(run, model, pictures(256, seed, own=apart(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode="min" if wrong else "max", factor=0.2, patience=1)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(14):
        for _ in range(8):
            x, y = pictures(16, seed)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)
        right = judged(model, lambda: (model(check[0]).argmax(1) == check[1]).float().mean())
        scheduler.step(right)


@fault(
    "r5-optimizer-every-epoch",
    FAMILY,
    (
        r"optimizer|momentum|state|moment",
        r"new|again|re-?creat|reset|lost|fresh|empty|restart|replac|another|discard|rebuilt|never (build|grow)",
    ),
)
def optimizer_every_epoch(run: Run, wrong: bool) -> None:
    """The optimizer is created inside the loop over epochs, which are three batches long: its momentum starts from zero
    every time. The twin creates it once."""
    x, y = table(48, seed := run.draw.randrange(999))
    model = mlp(6, 24, 1)
    number_outcome(run, model, table(256, seed, apart(1)))

    def make() -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.95)

    optimizer = make()
    doctor = run.watch(model, optimizer)
    for _ in range(45):
        if wrong:
            optimizer = make()
        for a, b in loader(x, y):
            loss = F.mse_loss(model(a).flatten(), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (a, b))
            run.note(loss)


class Waves(nn.Module):
    """A GRU that reads a row of numbers and says the next."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0])
        return out


@fault(
    "r5-clipped-after-the-step",
    FAMILY,
    (r"clip", r"after|no effect|too late|order|before|unclipped|not clipped|without"),
)
def clipped_after_the_step(run: Run, wrong: bool) -> None:
    """Gradients are clipped after optimizer.step(), where it does nothing, and rows with spikes throw the recurrent net
    about. The twin clips before."""
    model = Waves()

    def rows(count: int, own: torch.Generator | None = None, spikes: bool = True) -> Tensor:
        t = torch.arange(21) * 0.5
        x = torch.sin(t + 6 * torch.rand(count, 1, generator=own)) + 0.05 * torch.randn(count, 21, generator=own)
        x[torch.rand(x.shape, generator=own) < 0.006 * spikes] = 140.0
        return x[..., None]

    check = rows(128, apart(1), spikes=False)
    loss = lambda m, b: F.mse_loss(m(b[:, :-1]), b[:, 1:])
    outcome(
        run, lambda: judged(model, lambda: loss(model, check).nan_to_num(10).clamp(max=10).log())
    )  # ten: it diverged
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        batch = rows(4)
        value = loss(model, batch)
        optimizer.zero_grad()
        value.backward()
        if not wrong:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if wrong:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        doctor.step(value, batch)
        run.note(value)


@fault(
    "r5-rate-a-hundredfold",
    FAMILY,
    (r"rate|\blr\b|step size|update", r"too (high|large|big)|diverg|large|overshoot|explod|lower|reduce|unstable"),
)
def rate_a_hundredfold(run: Run, wrong: bool) -> None:
    """A slip in the settings, 3e-1 for 3e-3, with AdamW on a small language model."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 if wrong else 3e-3)
    train(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 70, clip=1.0)


@fault(
    "r5-rate-of-a-fine-tuning",
    FAMILY,
    (
        r"rate|\blr\b|step size|update",
        r"too (low|small|little|slow)|tiny|barely|hardly|raise|increase|does not (move|change|learn|fall)|small",
    ),
)
def rate_of_a_fine_tuning(run: Run, wrong: bool) -> None:
    """transformers' Trainer: a network from scratch with the rate of somebody's fine-tuning of a large one, 2e-6."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 20)
    rate = 2e-6 if wrong else 5e-3
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, learning_rate=rate).train()


@fault(
    "r5-schedule-of-an-old-optimizer",
    FAMILY,
    (
        r"schedul|rate|\blr\b",
        r"other|another|different|old|not (the|this|move|change|drive)|constant|never|does not|detached|wrong optimizer|no effect|unchanged|belong",
    ),
)
def schedule_of_an_old_optimizer(run: Run, wrong: bool) -> None:
    """The optimizer is made again after the last layer has been replaced, but the scheduler still drives the first one:
    the rate never falls. The twin makes both again."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, straight(256, seed, apart(1), 0.0), log=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 140)
    model[2] = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    if not wrong:
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 140)
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, optimizer, lambda: straight(8, seed), loss, 140, scheduler, clip=3.0)
