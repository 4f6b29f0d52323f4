"""Blind round 6, mistakes: optimizer and schedule; loading and resuming; evaluation and averages; alignment and tuning."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
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
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from torch import Tensor, nn
from torch.nn import functional as F

OPTIMIZER, LOADING = "optimizer, schedule, clipping", "initialisation, loading, resuming"
EVALUATION, TUNING = "evaluation, averages, a trainer's state", "alignment, fine-tuning, accumulation"


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


def taught(model: nn.Module, batch: Any, loss: Any, steps: int, rate: float = 5e-3) -> None:
    """What was trained before, by somebody else."""
    optimizer = adam(model, rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch()).backward()
        optimizer.step()


# optimizer, schedule, clipping


@fault(
    "r6-lambda-returns-the-rate",
    OPTIMIZER,
    (
        r"rate|lr\b|schedul|lambda",
        r"factor|multipl|squar|product|twice|too (small|low)|tiny|lambda|hardly|barely|do(es)? not move|order",
    ),
)
def lambda_returns_the_rate(run: Run, wrong: bool) -> None:
    """transformers' Trainer with an optimizer and a LambdaLR of one's own. The function returns the rate it wants, but
    LambdaLR multiplies what it returns with the optimizer's rate, so that 0.005 becomes 0.000025."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    top = 5e-3 if wrong else 1.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: top * min((step + 1) / 8, 1 - step / 80))
    hf_trainer(
        run, model, examples(input_ids=rows, labels=rows), 70, more={"optimizers": (optimizer, schedule)}
    ).train()


@fault(
    "r6-group-of-a-spent-generator",
    OPTIMIZER,
    (
        r"optimizer|group|update",
        r"empty|no parameter|not (in|held|updated|trained|given|passed|part)|missing|miss|never|generator|exhaust|left out|unregistered|does not hold|without|outside|lack",
    ),
)
def group_of_a_spent_generator(run: Run, wrong: bool) -> None:
    """The body's parameters are counted for a printout before they go into a group of the optimizer. `parameters()` is a
    generator, which is then at its end: the group is empty and the body never learns. The twin makes a list."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    body: Any = (p for name, p in model.named_parameters() if not name.startswith("head"))
    if not wrong:
        body = list(body)
    sum(p.numel() for p in body)
    optimizer = torch.optim.AdamW([{"params": body, "lr": 3e-3}, {"params": model.head.parameters()}], lr=6e-3)
    train(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 110)


@fault(
    "r6-plateau-by-batch",
    OPTIMIZER,
    (
        r"rate|lr\b|schedul|plateau",
        r"plateau|batch|every step|each step|too (often|early|small|low|soon)|collaps|vanish|tiny|patience|cut|fell|falls|decay",
    ),
)
def plateau_by_batch(run: Run, wrong: bool) -> None:
    """ReduceLROnPlateau with a patience of 3, meant for epochs, is given the loss of every batch. Batches differ, so that
    the rate is cut again and again. The twin gives it the mean of each epoch."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    data = loader(*pictures(256, seed), size=8)
    for _ in range(5):
        total = 0.0
        for batch in data:
            optimizer.zero_grad()
            loss = classify(model, batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
            total += float(loss.detach())
            if wrong:
                schedule.step(float(loss.detach()))
        if not wrong:
            schedule.step(total / len(data))


# initialisation, loading, resuming


@fault(
    "r6-reloaded-every-epoch",
    LOADING,
    (
        r"weight|parameter|model|checkpoint|progress|state",
        r"reload|load|reset|restor|revert|put back|goes back|go back|jump|lost|thrown|overwrit|outside (of )?the optimizer|again|undone",
    ),
)
def reloaded_every_epoch(run: Run, wrong: bool) -> None:
    """A fine-tuning whose load_state_dict of the pretrained weights stands inside the loop over epochs: each epoch begins
    where the first one did. The twin loads before the loop."""
    before, after = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    model = Decoder(12)
    taught(model, lambda: before.rows(16, 24), next_loss, 40)
    language_outcome(run, model, after)
    published = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(8):
        if wrong:
            model.load_state_dict(published)
        for _ in range(14):
            rows = after.rows(16, 24)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)


class Residual(nn.Module):
    """A stem and two residual blocks with batch norms."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.first = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.second = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.first_norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.second_norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.head = nn.Linear(channels * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem_norm(self.stem(x)).relu(), 2)
        for a, b, na, nb in zip(self.first, self.second, self.first_norms, self.second_norms, strict=True):
            x = (x + nb(b(na(a(x)).relu()))).relu()
        out: Tensor = self.head(x.flatten(1))
        return out


@fault(
    "r6-zero-gain-everywhere",
    LOADING,
    (
        r"norm|gain|gamma|scale|relu|unit|init|signal|activation",
        r"zero|dead|die|vanish|constant|0\b|silent",
    ),
)
def zero_gain_everywhere(run: Run, wrong: bool) -> None:
    """Lightning. The gains of the batch norms that end a residual block should begin at zero; the loop over modules sets
    them all, the stem's too: nothing passes, and behind the ReLU nothing gets a gradient."""
    seed = run.draw.randrange(999)
    net = Residual()
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d) and (wrong or name.startswith("second_norms")):
            nn.init.zeros_(module.weight)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    fit(run, lit(net, classify, adam), loader(*pictures(384, seed), size=12), 90)


class Tower(nn.Module):
    """Twelve equal layers, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 24)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = 0.8 * x + layer(x).tanh()
        out: Tensor = self.head(x)
        return out


@fault(
    "r6-layers-sorted-as-strings",
    LOADING,
    (
        r"layer|weight|load|checkpoint|pretrain|body",
        r"order|permut|sort|exchang|other layer|wrong (layer|place|weight)|string|mismatch|not (fit|match)|as (if )?(un|not )train|random|no better",
    ),
)
def layers_sorted_as_strings(run: Run, wrong: bool) -> None:
    """accelerate. A tower is loaded layer by layer from `sorted(names)`: `layers.10` comes before `layers.2`, everything
    fits, and ten of twelve layers get another's weights. Only the head is tuned, on few rows. The twin sorts by number."""
    seed = run.draw.randrange(999)
    source, net = Tower(), Tower()
    taught(source, lambda: table(48, seed), regress, 220, 3e-3)
    net.load_state_dict({k: v for k, v in source.state_dict().items() if not k.startswith("layers")}, strict=False)
    names = [str(i) for i in range(len(source.layers))]
    for layer, name in zip(net.layers, sorted(names) if wrong else names, strict=True):
        layer.load_state_dict(source.layers[int(name)].state_dict())
    net.head.reset_parameters()
    for part in (net.enter, net.layers):
        part.requires_grad_(False)
    number_outcome(run, net, table(512, seed, apart(1)))
    prepared(run, net, adam(net.head, 2e-2), loader(*table(128, seed)), regress, 15)


# evaluation, averages, a trainer's state


@fault(
    "r6-saliency-adds-gradients",
    EVALUATION,
    (
        r"gradient|backward",
        r"second|twice|two|another|other|add|accumul|more than|extra|not (that|those|the gradient) of|foreign|beside|differ|not.{0,20}loss|saliency|polluted|contamin|score",
    ),
)
def saliency_adds_gradients(run: Run, wrong: bool) -> None:
    """For a saliency map, drawn at every step, the best scores' sum is differentiated with backward() between the loss's
    backward() and the step: weights get that gradient too. The twin asks autograd.grad for the input's alone."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    data = endless(loader(*pictures(320, seed)))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        batch = next(data)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        seen = batch[0].clone().requires_grad_()
        score = model(seen).max(1).values.sum()
        if wrong:
            score.backward()
        else:
            torch.autograd.grad(score, seen)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@fault(
    "r6-average-begins-at-zero",
    EVALUATION,
    (
        r"average|ema|shadow|weights|parameters",
        r"zero|bias|correct|shrunk|shrink|too small|smaller|start|begin|init|norm",
    ),
)
def average_begins_at_zero(run: Run, wrong: bool) -> None:
    """A moving average of the weights, decay 0.99, begins at zero, and nobody divides by 1 - 0.99^t as Adam does: after
    120 steps every weight is seven tenths of what it should be. It is put in for evaluations, and for good at the end."""
    seed = run.draw.randrange(999)
    model = mlp(6, 48, 48, 1)
    number_outcome(run, model, table(512, seed, apart(1)))
    check = table(64, seed, apart(2))
    data = endless(loader(*table(512, seed)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    average = [torch.zeros_like(p) for p in model.parameters()]

    def put(tensors: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(model.parameters(), tensors, strict=True):
                p.copy_(value)

    for step in range(1, 121):
        batch = next(data)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        for a, p in zip(average, model.parameters(), strict=True):
            a.mul_(0.99).add_(p.detach(), alpha=0.01)
        if step % 30 == 0:
            own = [p.detach().clone() for p in model.parameters()]
            put([a / (1 if wrong else 1 - 0.99**step) for a in average])
            judged(model, lambda: regress(model, check))
            if step < 120:
                put(own)


@fault(
    "r6-graph-drawn-in-training-mode",
    EVALUATION,
    (
        r"batch.?norm|running|statistic|buffer|norm|mode",
        r"zero|dummy|extra|second|other|forward|twice|train(ing)? mode|differ|not.{0,30}(data|batch)|foreign|stale|drift|disagree|eval",
    ),
)
def graph_drawn_in_training_mode(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutional. A callback sends a picture of zeros through the model before each step, to
    draw its graph and count its operations; in training mode, so that every other batch of the norms' running
    statistics is zeros. The twin does so in evaluation mode."""
    from transformers import TrainerCallback

    seed = run.draw.randrange(999)
    net = cnn()
    cx, cy = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(cx), cy).log()))

    class Drawing(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = given["model"]
            model.train(wrong)
            with torch.no_grad():
                model(torch.zeros(2, 1, 8, 8))
            model.train()

    x, y = pictures(320, seed)
    trainer = hf_trainer(
        run, WithLoss(net, F.cross_entropy), examples(x=x, labels=y), 100, more={"callbacks": [Drawing()]}
    )
    trainer.train()


# alignment, fine-tuning, accumulation


def said(model: nn.Module, rows: Tensor, shifted: bool = True) -> Tensor:
    """The log probability of each row."""
    scores = model(rows).log_softmax(-1)
    if shifted:
        return scores[:, :-1].gather(2, rows[:, 1:, None]).squeeze(2).sum(1)
    return scores.gather(2, rows[:, :, None]).squeeze(2).sum(1)


@fault(
    "r6-log-probabilities-not-shifted",
    TUNING,
    (
        r"log.?prob|label|target|position|token|place|answer|loss",
        r"shift|align|same (place|position|token)|own (input|token|place)|next|off by one|itself|leak|copies|copy|sees|visible|current",
    ),
)
def log_probabilities_not_shifted(run: Run, wrong: bool) -> None:
    """DPO by hand. A row's log probability gathers each token's at the place where it is read, not at the one before: the
    policy is tuned to repeat its input. The twin shifts."""
    language = Language(run.draw.randrange(999))
    policy = Decoder(12)
    taught(policy, lambda: language.rows(16, 20), next_loss, 25)
    reference = copy.deepcopy(policy).requires_grad_(False)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        good = language.rows(count, 16, own)
        return good, torch.cat([good[:, :6], torch.randint(0, 12, (count, 10), generator=own)], 1)

    check = pairs(128, apart(1))

    def loss(m: nn.Module, b: Any, shifted: bool = not wrong) -> Tensor:
        margins = [said(m, rows, shifted) - said(reference, rows, shifted) for rows in b]
        return -F.logsigmoid(0.1 * (margins[0] - margins[1])).mean()

    outcome(run, lambda: judged(policy, lambda: loss(policy, check, True)))
    train(run, policy, adam(policy, 1e-3), lambda: pairs(16), loss, 80)


@fault(
    "r6-ratio-without-detach",
    TUNING,
    (
        r"gradient|ratio|loss|update",
        r"zero|no gradient|cancel|detach|ratio|constant|does not depend|vanish|nothing",
    ),
)
def ratio_without_detach(run: Run, wrong: bool) -> None:
    """A policy gradient in PPO's form with one update for each rollout: the ratio is exp(log p - log p), where the second
    should be detached. As it is not, the gradient is zero exactly."""
    own = apart(run.draw.randrange(999))
    weights = 2 * torch.randn(6, 5, generator=own)
    policy = mlp(6, 32, 5, act=nn.Tanh)
    x = torch.randn(512, 6, generator=apart(1))
    outcome(run, lambda: judged(policy, lambda: -(policy(x).softmax(1) * (x @ weights)).sum(1).mean()))

    def loss(m: nn.Module, states: Tensor) -> Tensor:
        chances = torch.distributions.Categorical(logits=m(states))
        actions = chances.sample()
        rewards = (states @ weights).gather(1, actions[:, None]).squeeze(1)
        advantages = (rewards - rewards.mean()) / rewards.std()
        now = chances.log_prob(actions)
        ratio = (now - (now if wrong else now.detach())).exp()
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()

    train(run, policy, adam(policy, 1e-2), lambda: torch.randn(64, 6), loss, 80)


@fault(
    "r6-step-outside-the-accumulation",
    TUNING,
    (
        r"accumul|zero_grad|clear|gradient|step|update",
        r"every micro|each micro|micro.?batch|not cleared|never cleared|zero_grad|stale|again|several times|old gradient|partial|between|kept|too often|more than once|add|accumul",
    ),
)
def step_outside_the_accumulation(run: Run, wrong: bool) -> None:
    """Accumulation over eight micro-batches, with optimizer.step() one indentation too far left: it is called after every
    micro-batch, zero_grad() after the eighth, so that the first gradient is applied eight times."""
    seed = run.draw.randrange(999)
    model = nn.Linear(6, 1)
    number_outcome(run, model, straight(1024, seed, apart(1)), log=True)
    data = endless(loader(*straight(800, seed), size=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    doctor = run.watch(model, optimizer)
    for _ in range(50):
        kept, losses = [], []
        optimizer.zero_grad()
        for micro in range(8):
            kept.append(next(data))
            loss = regress(model, kept[-1]) / 8
            loss.backward()
            losses.append(loss.detach())
            if wrong or micro == 7:
                optimizer.step()
        doctor.step(torch.stack(losses).sum(), kept)
        run.note(torch.stack(losses).sum())
