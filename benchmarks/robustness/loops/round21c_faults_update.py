"""Round 21c, mistakes in the update and its state: copies, counters, schedules, freezing, resuming, prices, passes."""

import io
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Patches, Translator
from benchmarks.robustness.loops.round7b_tools import taught, update
from benchmarks.robustness.loops.round8b_parts import steps, text_class_outcome, texts, told_loss
from benchmarks.robustness.loops.round21c_parts import (
    Offers,
    OwnAdam,
    Tower,
    asked,
    cosine,
    loans,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21c-kept-weights-are-the-same")
def kept_weights_are_the_same(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions over pictures, by sharpness-aware steps: up along the gradient, a second gradient
    there, back, and a step by it. The weights kept to go back to are p.data, not a copy of it: the step up is never
    taken back. The twin clones."""
    model = cnn()
    x, y = pictures(256, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y).log()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    doctor = run.watch(model, optimizer)
    params = list(model.parameters())
    batches = endless(loader(*pictures(640), size=32))
    for _ in range(140):
        batch = next(batches)
        loss = classify(model, batch)
        optimizer.zero_grad()
        loss.backward()
        kept = [p.data if wrong else p.data.clone() for p in params]
        norm = torch.cat([p.grad.flatten() for p in params]).norm()
        with torch.no_grad():
            for p in params:
                p.add_(p.grad, alpha=0.1 / (float(norm) + 1e-12))
        optimizer.zero_grad()
        classify(model, batch).backward()
        for p, old in zip(params, kept, strict=True):
            p.data = old
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@slip("r21c-counter-left-behind")
def counter_left_behind(run: Run, wrong: bool) -> None:
    """Plain loop, a translator of two GRUs with an Adam of its own, saved half-way and taken up again by another
    process. Adam counts its steps on itself, which no checkpoint holds: beside the old moments the corrections of
    their bias begin at step one, and the updates are a fraction of what they were. The twin counts beside the
    moments."""
    table = torch.randperm(12, generator=apart(run.draw.randrange(999)))

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(0, 12, (count, 5), generator=own)
        return source, table[source]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        shown = torch.cat([torch.full((len(target), 1), 12), target[:, :-1]], 1)
        return F.cross_entropy(model(source, shown).mT, target)

    def begun() -> tuple[Translator, OwnAdam]:
        model = Translator(12)
        return model, OwnAdam(model.parameters(), 3e-3, 0.01, wrong)

    model, optimizer = begun()
    for _ in range(80):
        optimizer.zero_grad()
        loss(model, pairs(32)).backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    model, optimizer = begun()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    check = pairs(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    steps(run, model, optimizer, lambda: pairs(32), loss, 100)


@slip("r21c-schedule-as-long-as-the-pieces")
def schedule_as_long_as_the_pieces(run: Run, wrong: bool) -> None:
    """accelerate with four pieces an update, a small BERT for texts. The schedule, a warm-up and a line to zero, is as
    long as there are batches, and is stepped with each update: it ends at a quarter of its way, where the rate is
    still high. The twin's is as long as there are updates."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from transformers import get_linear_schedule_with_warmup

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    net = tiny_bert()
    text_class_outcome(run, net, texts(256, apart(1)))
    engine = Accelerator(cpu=True, gradient_accumulation_steps=4)
    plain = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
    data = loader(*texts(320).values(), size=4)
    total = 4 * len(data) if wrong else 4 * len(data) // 4
    rate = get_linear_schedule_with_warmup(plain, total // 10, total)
    model, optimizer, data, rate = engine.prepare(net, plain, data, rate)
    doctor = run.watch(model, optimizer)
    told, read = torch.zeros(()), []
    for _ in range(4):
        for ids, mask, labels in data:
            with engine.accumulate(model):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
                engine.backward(loss)
                optimizer.step()
                rate.step()
                optimizer.zero_grad()
            told, read = told + loss.detach() / 4, [*read, (ids, mask, labels)]
            if engine.sync_gradients:
                doctor.step(told, read)
                run.note(told)
                told, read = torch.zeros(()), []


@slip("r21c-frozen-by-an-attribute")
def frozen_by_an_attribute(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT whose body is to stay as it is while a new head learns other labels from few
    texts. The body's modules are given requires_grad = False, an attribute that says nothing to their parameters: all
    learns, at the head's rate. The twin calls requires_grad_."""
    model = tiny_bert(hidden_dropout_prob=0.0)
    taught(model, lambda: texts(16), told_loss, 100, 3e-3)
    model.classifier = nn.Linear(32, 3)

    def relabelled(count: int, lies: float, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = texts(count, own)
        other = torch.randint(0, 3, (count,), generator=own)
        labels = torch.tensor([2, 0, 1])[rows["labels"]]
        return rows | {"labels": torch.where(torch.rand(count, generator=own) < lies, other, labels)}

    text_class_outcome(run, model, relabelled(256, 0.0, apart(1)))
    for module in model.bert.modules():
        if wrong:
            module.requires_grad = False  # type: ignore[assignment]
        else:
            module.requires_grad_(False)
    hf_trainer(run, model, examples(**relabelled(64, 0.3)), 100, learning_rate=1e-2).train()


@slip("r21c-both-schedules-on-one")
def both_schedules_on_one(run: Run, wrong: bool) -> None:
    """Plain loop, two towers for questions and answers, each with its own Adam and its own schedule. The second
    schedule is made with the first tower's optimizer: the answers' tower learns at its peak rate from the first step
    to the last. The twin's is made with its own."""
    table = torch.randperm(24, generator=apart(run.draw.randrange(999)))
    ask, answer = Tower(24), Tower(24)
    first, second = (torch.optim.Adam(tower.parameters(), lr=5e-2) for tower in (ask, answer))
    schedules = [cosine(first, 120, 20), cosine(first if wrong else second, 120, 20)]
    check = asked(256, table, apart(1))

    def loss(batch: Any) -> Tensor:
        near = ask(batch[0]) @ answer(batch[1]).T / 0.05
        own = torch.arange(len(near))
        return 0.5 * (F.cross_entropy(near, own) + F.cross_entropy(near.T, own))

    outcome(run, lambda: judged(ask, lambda: loss(check)))
    doctors = [run.watch(ask, first), run.watch(answer, second)]
    for _ in range(120):
        batch = asked(64, table)
        value = loss(batch)
        for optimizer in (first, second):
            optimizer.zero_grad()
        value.backward()
        for optimizer in (first, second):
            optimizer.step()
        for doctor in doctors:
            doctor.step(value, batch)
        for schedule in schedules:
            schedule.step()
        run.note(value)


@slip("r21c-passes-end-at-minus-the-divergence")
def passes_end_at_minus_the_divergence(run: Run, wrong: bool) -> None:
    """Plain loop, a policy that chooses one of four offers for a customer, up to twelve passes over each batch of its
    own choices, to end where the divergence from the old policy is above two hundredths. It is taken as new less old,
    which is below zero where they part: no batch ends early, and the policy runs away from each. The twin takes old
    less new."""
    offers = Offers(run.draw.randrange(999))
    model = mlp(12, 64, 4, act=nn.Tanh)
    customers = torch.randn(512, 12, generator=apart(1))

    def missed() -> Tensor:
        mean = offers.mean(customers)
        return (mean.amax(1) - (model(customers).softmax(1) * mean).sum(1)).mean()

    outcome(run, lambda: judged(model, missed))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(20):
        x = torch.randn(64, 12)
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=model(x))
            chosen = policy.sample()
            old, brought = policy.log_prob(chosen), offers.bring(x, chosen)
        gain = (brought - brought.mean()) / brought.std()
        for _ in range(12):
            new = model(x).log_softmax(1).gather(1, chosen[:, None]).squeeze(1)
            divergence = (new - old if wrong else old - new).mean()
            if divergence > 0.02:
                break
            update(run, doctor, optimizer, -((new - old).exp() * gain).mean(), (x, chosen, old, gain))


@slip("r21c-old-rate-comes-with-the-moments")
def old_rate_comes_with_the_moments(run: Run, wrong: bool) -> None:
    """Plain loop, a small vision transformer in its second stage, on other pictures, with the moments of the first.
    With the optimizer's state its rate comes back too, the one at which the first stage's cosine ended, in the place
    of the new one. The twin sets the new rate once the state is loaded."""
    model = Patches(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, eta_min=1e-5)
    for _ in range(100):
        optimizer.zero_grad()
        classify(model, pictures(16)).backward()
        optimizer.step()
        schedule.step()
    saved = optimizer.state_dict()
    class_outcome(run, model, pictures(256, 5, own=apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    optimizer.load_state_dict(saved)
    if not wrong:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3
    steps(run, model, optimizer, lambda: pictures(16, 5), classify, 140)


@slip("r21c-price-descends-with-the-rest")
def price_descends_with_the_rest(run: Run, wrong: bool) -> None:
    """Plain loop, a classifier of loans under a bound: between two groups the mean prediction may differ by a
    twentieth. The price of breaking it is a parameter, and it goes down the same gradient as the weights, not up: the
    more the bound is broken the cheaper it becomes, and it stays at nought. The twin's price goes up."""

    model = mlp(6, 32, 32, 1)
    price = nn.Parameter(torch.tensor(0.0))

    def both(batch: Any) -> tuple[Tensor, Tensor]:
        x, paid, group = batch
        scores = model(x).squeeze(1)
        chance = scores.sigmoid()
        gap = (chance[group == 1].mean() - chance[group == 0].mean()).abs()
        return F.binary_cross_entropy_with_logits(scores, paid), gap - 0.05

    check = loans(1024, apart(1))

    def measure() -> Tensor:
        loss, over = both(check)
        return loss + 3 * over.clamp_min(0)

    outcome(run, lambda: judged(model, measure))
    groups = [{"params": model.parameters()}, {"params": [price], "lr": 5e-2, "maximize": not wrong}]
    optimizer = torch.optim.Adam(groups, lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        batch = loans(64)
        loss, over = both(batch)
        value = loss + price * over
        update(run, doctor, optimizer, value, batch)
        with torch.no_grad():
            price.clamp_(min=0)
