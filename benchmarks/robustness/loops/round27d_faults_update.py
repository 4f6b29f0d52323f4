"""Round 27d, mistakes in updates and in what is kept from step to step: moments, rates, groups, stages, adapters,
loaders, normalisers."""

import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_bert,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Patches
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome, text_class_outcome, texts
from benchmarks.robustness.loops.round27d_parts import (
    FlatAdam,
    Rated,
    Restorer,
    Running,
    Stores,
    machines,
    sales,
    slip,
    tones,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27d-every-step-is-the-first")
def every_step_is_the_first(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP and an Adam of our own over all parameters as one row. Its moments are kept under the row, a
    new tensor at each step: they are never found again, and each step is a first one, a sign times the rate. The twin
    keeps them under the first parameter. Judged by the unexplained share on other rows."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    number_outcome(run, net, table(384, seed, apart(1), noise=0.02), log=True)
    train(run, net, FlatAdam(net.parameters(), 5e-3, wrong), lambda: table(64, seed, noise=0.02), regress, 150)


@slip("r27d-asleep-since-the-probe")
def asleep_since_the_probe(run: Run, wrong: bool) -> None:
    """Lightning, a convolutional autoencoder that restores pictures with half of their pixels hidden. Every twenty
    steps a linear probe tells how well classes can be read off the codes; for it the encoder is frozen, and not thawed
    again: from the first probe on only the decoder learns. The twin thaws it. Judged by the squared error."""
    seed = run.draw.randrange(999)
    net = Restorer()
    steps, shares = itertools.count(1), []

    def restored(m: nn.Module, x: Tensor, shown: Tensor) -> Tensor:
        return F.mse_loss(m(x * shown), x)

    check, _ = pictures(384, seed, own=apart(1))
    seen = (torch.rand(check.shape, generator=apart(2)) < 0.5).float()
    outcome(run, lambda: judged(net, lambda: restored(net, check, seen)))
    labelled, classes = pictures(96, seed, own=apart(3))

    def probe() -> None:
        net.encoder.requires_grad_(False)
        codes = net.encoder(labelled)
        reader = nn.Linear(24, 4)
        taught(reader, lambda: (codes, classes), classify, 20, 3e-2)
        shares.append(float((reader(codes).argmax(1) == classes).float().mean()))
        if not wrong:
            net.encoder.requires_grad_(True)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        if next(steps) % 20 == 0:
            probe()
        return restored(m, batch[0], (torch.rand(batch[0].shape) < 0.5).float())

    fit(run, lit(net, loss, lambda m: adam(m)), loader(pictures(640, seed)[0]), 140)


@slip("r27d-warmed-by-what-was-warmed")
def warmed_by_what_was_warmed(run: Run, wrong: bool) -> None:
    """Plain loop, a small vision transformer with five steps of warm-up. Each multiplies the rate as it stands by its
    share, and not the rate that was asked for: five shares multiply to a twenty-sixth, which stays. The twin multiplies
    the rate that was asked for. Judged by the cross-entropy on other pictures."""
    rate, seed = 3e-3, run.draw.randrange(999)
    net = Patches(4)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    doctor = run.watch(net, optimizer)
    for step in range(1, 121):
        if step <= 5:
            for group in optimizer.param_groups:
                group["lr"] = (group["lr"] if wrong else rate) * step / 5
        batch = pictures(16, seed)
        loss = classify(net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@slip("r27d-slopes-of-the-tables-pile-up")
def slopes_of_the_tables_pile_up(run: Run, wrong: bool) -> None:
    """Plain loop, ratings by an MLP over vectors of users and items; the two by an Adam each. Only the second
    optimizer clears its gradients: those of the tables are sums since the beginning. The twin clears both. Judged by
    the unexplained share of other ratings."""
    users, items = 60, 40
    truth = apart(run.draw.randrange(999))
    level = torch.randn(users, 1, generator=truth) + torch.randn(items, generator=truth)
    liking = level + 0.3 * torch.randn(users, 3, generator=truth) @ torch.randn(3, items, generator=truth)
    net = Rated(users, items)

    def ratings(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        user, item = (torch.randint(0, n, (count,), generator=own) for n in (users, items))
        return user, item, liking[user, item] + 0.2 * torch.randn(count, generator=own)

    def missed(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    check = ratings(768, apart(1))
    outcome(run, lambda: judged(net, lambda: missed(net, check) / check[2].var()))
    tables = adam(net.tables, 2e-2)
    over = adam(net.over, 5e-3)
    doctor = run.watch(net, [tables, over])
    for _ in range(150):
        batch = ratings(64)
        loss = missed(net, batch)
        over.zero_grad()
        if not wrong:
            tables.zero_grad()
        loss.backward()
        tables.step()
        over.step()
        doctor.step(loss, batch)
        run.note(loss)


@slip("r27d-first-lesson-unloaded")
def first_lesson_unloaded(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 with adapters in two stages. Between them the first adapter is unloaded and
    not merged: its weights are dropped, and the second stage begins from the model as it was before the first. The twin
    merges. Judged by the loss on other texts of the second stage."""
    import peft

    seed = run.draw.randrange(999)
    general = Language(seed)
    domain = near(general, seed + 1, 0.5)
    special = near(domain, seed + 2, 0.1)
    base = tiny_gpt2(12)
    taught(base, lambda: general.rows(16, 20), causal_loss, 90)

    def with_adapter(model: Any, rank: int) -> Any:
        where = ["c_attn", "c_proj", "c_fc"]
        settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=where, fan_in_fan_out=True)
        return peft.get_peft_model(model, settings)

    first = with_adapter(base, 8)
    taught(first, lambda: domain.rows(16, 20), causal_loss, 90)
    net = with_adapter(first.unload() if wrong else first.merge_and_unload(), 4)
    causal_outcome(run, net, special)
    rows = special.rows(128, 20)
    trainer = hf_trainer(run, net, examples(input_ids=rows, labels=rows), 64, label_names=["labels"])
    trainer.train()


@slip("r27d-spread-inside-batches-alone")
def spread_inside_batches_alone(run: Run, wrong: bool) -> None:
    """accelerate, an MLP behind a layer that standardises by all rows seen so far and limits to five spreads. Spreads
    of batches are averaged without the distance of the batches' means, and each batch is one machine's: the spread is
    that inside machines, and most levels lie beyond the limit. The twin adds the distances. Judged on others."""
    net = nn.Sequential(Running(4, with_means=not wrong), mlp(4, 48, 48, 1))
    number_outcome(run, net, machines(200, 2, apart(1)))
    prepared(run, net, adam(net), loader(*machines(60, 16), shuffle=False), regress, 2)


@slip("r27d-left-out-in-every-epoch")
def left_out_in_every_epoch(run: Run, wrong: bool) -> None:
    """accelerate, an MLP with a vector for each of twenty stores, one store a batch, resumed after twelve batches of an
    epoch. The loader that leaves out the first twelve is used for all epochs that follow too: twelve stores are never
    seen again. The twin leaves them out in the first epoch alone. Judged on all stores."""
    from accelerate import Accelerator, skip_first_batches
    from accelerate.state import AcceleratorState, GradientState

    seed = run.draw.randrange(999)
    net = Stores(20)
    optimizer = adam(net, 1e-2)

    def missed(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    columns, target = sales(20, 32, seed, apart(1))
    check = (*columns, target)
    outcome(run, lambda: judged(net, lambda: (missed(net, check) / target.var()).log()))
    columns, target = sales(20, 32, seed)
    data = loader(*columns, target, size=32, shuffle=False)
    for batch in itertools.islice(data, 12):
        optimizer.zero_grad()
        missed(net, batch).backward()
        optimizer.step()
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, prepared_optimizer, data = engine.prepare(net, optimizer, data)
    rest = skip_first_batches(data, 12)

    def epochs() -> Any:
        for epoch in itertools.count():
            yield from rest if wrong or epoch == 0 else data

    doctor = run.watch(model, prepared_optimizer)
    for batch in itertools.islice(epochs(), 120):
        prepared_optimizer.zero_grad()
        value = missed(model, batch)
        engine.backward(value)
        prepared_optimizer.step()
        doctor.step(value, batch)
        run.note(value)


@slip("r27d-shown-what-the-old-body-saw")
def shown_what_the_old_body_saw(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over sounds, taught on other pitches before. For forty steps the body is frozen and what
    it says of each row is kept, to save time; then it is thawed, and the kept features are still used: the body gets no
    gradient, and nothing of it changes. The twin computes anew once it is thawed. Judged by the cross-entropy."""
    before, net = Listener(4), Listener(3)
    taught(before, lambda: tones(32, 0.3, 0.25, 4), classify, 80)
    net.body.load_state_dict(before.body.state_dict())
    net.body.requires_grad_(False)
    class_outcome(run, net, tones(384, 1.5, 0.25, 3, apart(1)))
    steps = itertools.count()
    kept: dict[int, Tensor] = {}

    def features(x: Tensor, rows: list[int], frozen: bool) -> Tensor:
        if not (frozen or wrong):
            out: Tensor = net.body(x).mean(2)
            return out
        with torch.no_grad():
            for place, row in enumerate(rows):
                if row not in kept:
                    kept[row] = net.body(x[place : place + 1]).mean(2)[0]
        return torch.stack([kept[row] for row in rows])

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y, row = batch
        step = next(steps)
        if step == 40:
            net.body.requires_grad_(True)
        return F.cross_entropy(net.head(features(x, row.tolist(), step < 40)), y)

    def groups(m: Any) -> Any:
        return torch.optim.Adam([{"params": m.body.parameters(), "lr": 2e-3}, {"params": m.head.parameters()}], lr=1e-2)

    fit(run, lit(net, loss, groups), loader(*tones(320, 1.5, 0.25, 3), torch.arange(320)), 140)


@slip("r27d-nine-tenths-from-the-last-batch")
def nine_tenths_from_the_last_batch(run: Run, wrong: bool) -> None:
    """Lightning, an MLP with batch norms taken over from Keras, where a momentum of 0.9 keeps nine tenths of the old
    statistics; in torch it takes nine tenths of the new: in use the norms stand by the last batch of sixteen. The twin
    sets 0.1. Judged by the unexplained share on other rows."""
    seed = run.draw.randrange(999)
    keeps = 0.9
    net = mlp(6, 48, 48, 48, 1, norm=True)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = keeps if wrong else 1 - keeps
    number_outcome(run, net, table(384, seed, apart(1)), log=True)

    def falling(m: Any) -> Any:
        optimizer = adam(m)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 150)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fit(run, lit(net, regress, falling), loader(*table(800, seed)), 150)


@slip("r27d-betas-as-the-file-has-them")
def betas_as_the_file_has_them(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT and an Adam of its own settings. The file names the second beta first, and
    the two are handed over in the file's order: slopes are averaged over a thousand steps, their squares over ten. The
    twin asks for each by its name. Judged by the cross-entropy on other texts."""
    settings = {"lr": 2e-3, "beta_2": 0.999, "beta_1": 0.9}
    net = tiny_bert()
    text_class_outcome(run, net, texts(384, apart(1)))
    in_order = tuple(value for key, value in settings.items() if key.startswith("beta"))
    betas = in_order if wrong else (settings["beta_1"], settings["beta_2"])
    optimizer = torch.optim.Adam(net.parameters(), lr=settings["lr"], betas=betas)
    more = {"optimizers": (optimizer, None)}
    hf_trainer(run, net, examples(**texts(640)), 120, lr_scheduler_type="constant", more=more).train()
