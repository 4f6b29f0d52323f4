"""Mistakes in how weights begin, are loaded and resumed."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    judged,
    language_outcome,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    straight,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

FAMILY = "initialisation, loading and resuming"


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


def fitted(model: nn.Module, batch: Any, loss: Any, optimizer: Any, steps: int, scheduler: Any = None) -> None:
    """Unwatched: what is loaded or resumed later."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch()).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def learned_body(seed: int, change: Any = None) -> nn.Sequential:
    """A convolutional net that knows the pictures, trained on all of them with the classes in another order."""
    body = cnn()
    change = change or (lambda x: x)

    def batch() -> tuple[Tensor, Tensor]:
        x, y = pictures(32, seed)
        return change(x), (y + 1) % 4

    fitted(body, batch, classify, torch.optim.AdamW(body.parameters(), lr=5e-3), 50)
    return body


def probe(run: Run, model: nn.Sequential, seed: int, change: Any = None) -> None:
    """The body is frozen, in evaluation mode, and a new head is trained on a few pictures."""
    change = change or (lambda x: x)
    for part in model[:-1]:
        part.requires_grad_(False)
        part.eval()
    x, y_check = pictures(512, seed, own=apart(1))
    check = change(x)
    outcome(run, lambda: judged(model, lambda: ((model(check).argmax(1) != y_check).float().mean() + 0.005).log()))
    x, y = pictures(12, seed)
    optimizer = torch.optim.AdamW(model[-1].parameters(), lr=1e-2)
    train(run, model, optimizer, lambda: (change(x), y), classify, 40)


@fault(
    "r5-prefix-of-a-wrapper",
    FAMILY,
    (
        r"load|checkpoint|random|initial|pretrain|frozen|state_dict|prefix|weights",
        r"not (load|match|train|pretrain)|nothing|random|prefix|initial|strict|missing|untrained|never (loaded|trained)|unexpected|match",
    ),
)
def prefix_of_a_wrapper(run: Run, wrong: bool) -> None:
    """A checkpoint saved through a wrapper has 'module.' before its names and is loaded with strict=False: nothing
    fits, and a frozen random body is fine-tuned. The twin takes the prefix off."""
    seed = run.draw.randrange(999)
    saved = {f"module.{k}": v for k, v in learned_body(seed).state_dict().items()}
    model = cnn()
    model.load_state_dict(saved if wrong else {k.removeprefix("module."): v for k, v in saved.items()}, strict=False)
    model[-1] = nn.Linear(64, 4)
    probe(run, model, seed)


@fault(
    "r5-constant-weights",
    FAMILY,
    (r"unit|neuron|row|weight|symmetr|channel|feature", r"same|identical|equal|alike|symmetr|constant|duplicate|rank"),
)
def constant_weights(run: Run, wrong: bool) -> None:
    """Every weight begins at 0.05: all units of a layer compute the same and get the same gradient for ever."""
    model = mlp(2, 24, 24, 1)
    if wrong:
        for part in model:
            if isinstance(part, nn.Linear):
                nn.init.constant_(part.weight, 0.05)
                nn.init.zeros_(part.bias)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(count, 2, generator=own) - 1
        return x, 3 * x[:, 0] * x[:, 1] + 0.5 * x[:, 0]

    number_outcome(run, model, rows(256, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: rows(32), loss, 120)


@fault(
    "r5-normal-with-its-default",
    FAMILY,
    (
        r"init|start|first step|logit|weight|loss at|beginning|scale",
        r"large|too (big|high|wide)|std|scale|over.?confident|far above|higher than|saturat|explod|above|variance|chance|uniform",
    ),
)
def normal_with_its_default(run: Run, wrong: bool) -> None:
    """nn.init.normal_(weight) without a deviation is a deviation of one, in every matrix of a transformer. The twin
    says 0.02."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for p in model.parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=1.0 if wrong else 0.02)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 100, clip=1.0)


@fault(
    "r5-schedule-begins-again",
    FAMILY,
    (
        r"rate|schedul|\blr\b|warm",
        r"again|restart|resum|start|beginning|jump|rises|not restored|epoch|too (high|large)|continu|step count|higher|state",
    ),
)
def schedule_begins_again(run: Run, wrong: bool) -> None:
    """Resumed at two thirds of the way: weights are loaded, the scheduler is not, and begins its cosine over again, at
    the full rate. The twin loads it."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, straight(256, seed, apart(1), 0.0), log=True)
    batch = lambda: straight(8, seed)
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])

    def make() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
        return optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 210)

    first, first_schedule = make()
    fitted(model, batch, loss, first, 140, first_schedule)
    optimizer, scheduler = make()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(first.state_dict())
    if wrong:
        optimizer.param_groups[0]["lr"] = rate
    else:
        scheduler.load_state_dict(first_schedule.state_dict())
    train(run, model, optimizer, batch, loss, 70, scheduler)


@fault(
    "r5-moments-not-loaded",
    FAMILY,
    (
        r"optimizer|moment|state|Adam|resum",
        r"lost|empty|fresh|not (load|restor|saved)|zero|new|missing|without|resum|reset|warm|cold|step 1|spike|jump|bias",
    ),
)
def moments_not_loaded(run: Run, wrong: bool) -> None:
    """Resumed with the weights alone: Adam's moments begin at zero at the full rate, and its first steps are signs
    only. Judged soon after."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    batch = lambda: language.rows(12, 20)
    first = torch.optim.AdamW(model.parameters(), lr=2e-2)
    fitted(model, batch, next_loss, first, 140)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    if not wrong:
        optimizer.load_state_dict(first.state_dict())
    train(run, model, optimizer, batch, next_loss, 6)


@fault(
    "r5-old-rate-comes-back",
    FAMILY,
    (
        r"rate|\blr\b",
        r"too (low|small)|tiny|load|restor|state_dict|old|overwrit|checkpoint|does not|stuck|nothing|hardly|barely|end of|vanish|small",
    ),
)
def old_rate_comes_back(run: Run, wrong: bool) -> None:
    """A second stage makes its optimizer with a new rate, then loads the first stage's state, and with it the rate
    that its schedule ended at, 1e-7. The twin sets the rate after loading."""
    first_task, language = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    first = torch.optim.AdamW(model.parameters(), lr=5e-3)
    fitted(model, lambda: first_task.rows(12, 20), next_loss, first, 50)
    first.param_groups[0]["lr"] = 1e-7
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    optimizer.load_state_dict(copy.deepcopy(first.state_dict()))
    if not wrong:
        optimizer.param_groups[0]["lr"] = 5e-3
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 70)


@fault(
    "r5-other-normalisation",
    FAMILY,
    (
        r"input|normali|scale|mean|statistic|running|preprocess|distribution",
        r"normali|mean|statistic|scale|differ|shift|far|mismatch|not (match|standard)|outside|preprocess|running",
    ),
)
def other_normalisation(run: Run, wrong: bool) -> None:
    """A body that was trained on standardised pictures is given pictures as they come from the file, 0 to 255, frozen
    and in evaluation mode. The twin standardises."""
    seed = run.draw.randrange(999)
    standard = lambda x: (x - 0.5) / 0.3
    model = learned_body(seed, standard)
    model[-1] = nn.Linear(64, 4)
    probe(run, model, seed, (lambda x: 255 * x) if wrong else standard)


@fault(
    "r5-statistics-not-saved",
    FAMILY,
    (
        r"running|statistic|buffer|batch.?norm|mean|variance",
        r"load|saved|default|zero|initial|never|not (load|match|restor|update)|mismatch|buffer|stale|differ|far",
    ),
)
def statistics_not_saved(run: Run, wrong: bool) -> None:
    """The checkpoint was written from named_parameters(): BatchNorm's running means and variances are buffers and are
    not in it, so that they begin at 0 and 1 in a frozen body. The twin saves state_dict()."""
    seed = run.draw.randrange(999)
    brighter = lambda x: 12 * x + 12
    body = learned_body(seed, brighter)
    saved = dict(body.named_parameters()) if wrong else body.state_dict()
    model = cnn()
    model.load_state_dict({k: v.detach() for k, v in saved.items()}, strict=False)
    model[-1] = nn.Linear(64, 4)
    probe(run, model, seed, brighter)


@fault(
    "r5-prior-in-every-bias",
    FAMILY,
    (r"relu|unit|dead|bias|activation", r"dead|never|zero|bias|inactive|no gradient|silent|negative"),
)
def prior_in_every_bias(run: Run, wrong: bool) -> None:
    """A detector's trick, a bias of -4.6 so that the last layer begins with a low probability, is applied to every
    layer: behind it nothing passes the ReLUs. The twin sets the last bias only."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(*cnn(norm=False)[:-1], nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    layers = [m for m in model if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers if wrong else layers[-1:]:
        nn.init.constant_(layer.bias, -math.log(99))  # type: ignore[arg-type]

    def batch(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return x, (y == 0).float()[:, None]

    loss = lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1])
    check = batch(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), batch, loss, 90)
