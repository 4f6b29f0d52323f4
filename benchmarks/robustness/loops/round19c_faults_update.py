"""Round 19c, mistakes in what moves weights: rates, schedules, averages."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
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
    table,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Patches, Reader, Translator, sounds
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import text_class_outcome, texts, told_loss
from benchmarks.robustness.loops.round18_parts import Heard, series
from benchmarks.robustness.loops.round19c_parts import (
    averaged_for_evaluation,
    next_words,
    slip,
    step_by_step,
    warming,
)
from torch import Tensor, nn


@slip("r19c-warmup-by-the-batch-of-the-epoch")
def warmup_by_the_batch_of_the_epoch(run: Run, wrong: bool) -> None:
    """Lightning, a small vision transformer. The rate is warmed up by hand in optimizer_step over eighty steps, and its
    step is the batch's number in the epoch, of twenty: the rate saws between nothing and a quarter. The twin takes the
    global step."""
    net = Patches(4)
    class_outcome(run, net, pictures(256, own=apart(1)))
    fit(run, warming(net, 3e-3, 80, wrong), loader(*pictures(320)), 140)


@slip("r19c-better-by-an-absolute-hundredth")
def better_by_an_absolute_hundredth(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that says a small number of a series. The schedule for plateaus is to take an improvement by
    one part in a hundred for one; its threshold is absolute, and the whole loss is hardly larger: each evaluation but
    the first is a plateau. The threshold of the twin is relative."""

    def metres(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = series(count, 0.0, own)
        return x, 0.2 * y

    model = Heard(2)
    check = metres(256, apart(1))
    number_outcome(run, model, check)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    mode = "abs" if wrong else "rel"
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=1, threshold=1e-2, threshold_mode=mode
    )
    held_out, data = metres(128, apart(2)), loader(*metres(160))
    doctor = None
    for _ in range(14):
        doctor = step_by_step(run, model, optimizer, data, regress, doctor)
        schedule.step(judged(model, lambda: regress(model, held_out)))


@slip("r19c-averaged-from-the-third-step")
def averaged_from_the_third_step(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions over sounds. The mean of the weights is to begin with the fourth epoch; three, the
    epoch, is compared with the number of the step, and so the mean holds nearly all there was. The model takes it, and
    goes on for a short time at a small rate. The twin compares with the epoch."""
    model = Listener()
    class_outcome(run, model, sounds(256, apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    mean = torch.optim.swa_utils.AveragedModel(model)
    data, start, step, doctor = loader(*sounds(480)), 3, 0, None
    for epoch in range(4):
        for batch in data:
            doctor = step_by_step(run, model, optimizer, [batch], classify, doctor)
            step += 1
            if (step if wrong else epoch) >= start:
                mean.update_parameters(model)
    model.load_state_dict(mean.module.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 2e-4
    batches = endless(data)
    step_by_step(run, model, optimizer, (next(batches) for _ in range(15)), classify, doctor)


@slip("r19c-rates-fall-by-tensor")
def rates_fall_by_tensor(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT of three layers that is taken to texts in which words mean something else. Its
    rates are to fall by a tenth a layer, and fall by a tenth with each tensor: at the vectors of words hardly anything
    is left. The twin counts layers."""
    model = tiny_bert(num_hidden_layers=3)
    taught(model, lambda: texts(16), told_loss, 80, 3e-3)
    meaning = torch.cat([torch.zeros(1, dtype=torch.long), torch.randperm(15, generator=apart(5)) + 1])

    def elsewhere(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = texts(count, own)
        return rows | {"input_ids": meaning[rows["input_ids"]]}

    text_class_outcome(run, model, elsewhere(256, apart(1)))

    def depth(name: str) -> int:
        if "embeddings" in name:
            return 0
        return int(name.split("layer.")[1].split(".")[0]) + 1 if "layer." in name else 4

    named = list(model.named_parameters())
    below = [len(named) - 1 - i if wrong else 4 - depth(name) for i, (name, _) in enumerate(named)]
    groups = [{"params": [p], "lr": 3e-3 * 0.9**k} for (_, p), k in zip(named, below, strict=True)]
    optimizer = torch.optim.AdamW(groups)
    data = examples(**elsewhere(640))
    hf_trainer(run, model, data, 80, more={"optimizers": (optimizer, None)}).train()


@slip("r19c-cosine-without-its-pi")
def cosine_without_its_pi(run: Run, wrong: bool) -> None:
    """accelerate, two layers for a number from a table with much noise. The rate is to fall to nothing along half a
    cosine; the formula lacks pi, and it ends at three quarters. The twin has it."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    seed, net = run.draw.randrange(999), mlp(6, 48, 1, norm=True)
    number_outcome(run, net, table(512, seed, apart(1)))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-2)
    half = 1.0 if wrong else math.pi
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(half * step / 140)))
    data = loader(*table(1120, seed, noise=2.0), size=8)
    model, optimizer, data, schedule = engine.prepare(net, optimizer, data, schedule)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    for batch in data:
        optimizer.zero_grad()
        value = regress(model, batch)
        engine.backward(value)
        optimizer.step()
        schedule.step()
        doctor.step(value, batch)
        run.note(value)


@slip("r19c-average-that-begins-at-a-million")
def average_that_begins_at_a_million(run: Run, wrong: bool) -> None:
    """Plain loop, a language model of an LSTM, averaged SGD at a large constant rate, whose averages the model takes in
    the end. ASGD begins to average at its t0, by default a million steps: until then the average is the last weights.
    The twin sets it to eighty."""
    language = Language(run.draw.randrange(999))
    model = Reader(12, core=nn.LSTM)
    language_outcome(run, model, language, 20)
    optimizer = torch.optim.ASGD(model.parameters(), lr=10.0, **({} if wrong else {"t0": 80}))
    step_by_step(run, model, optimizer, (language.rows(4, 16) for _ in range(150)), next_loss, clip=1.0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(optimizer.state[p]["ax"])


@slip("r19c-linear-over-five-by-default")
def linear_over_five_by_default(run: Run, wrong: bool) -> None:
    """Lightning, an encoder and a decoder of GRUs. The rate is to fall linearly over all fourteen epochs; total_iters
    is not given, and its default is five. The twin gives fourteen."""
    net = Translator(14)
    own = apart(run.draw.randrange(999))
    said_as = torch.randperm(14, generator=own)

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        source = torch.randint(0, 14, (count, 5), generator=own)
        return source, said_as[source.flip(1)]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        shown = torch.cat([torch.full((len(batch[1]), 1), 14), batch[1][:, :-1]], 1)
        return next_words(m(batch[0], shown), batch[1])

    check = rows(192, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))

    def optimizers(m: nn.Module) -> Any:
        optimizer = torch.optim.Adam(m.parameters(), lr=8e-3)
        length = {} if wrong else {"total_iters": 14}
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, **length)]

    fit(run, lit(net, loss, optimizers), loader(*rows(320, own), size=32), 140)


@slip("r19c-backed-up-once")
def backed_up_once(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2. Every twenty steps the weights are put aside, an average of them is evaluated, and
    they are put back. They are put aside where nothing is yet: from the second time on, those of the first time come
    back. The twin puts them aside each time."""
    language = Language(run.draw.randrange(999), first=3)
    model = tiny_gpt2(16)
    check, held_out = language.rows(96, 20, apart(1)), language.rows(32, 20, apart(2))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def evaluate(m: Any) -> float:
        return judged(m, lambda: m(input_ids=held_out, labels=held_out).loss)

    rows = language.rows(640, 20)
    trainer = hf_trainer(run, model, examples(input_ids=rows, labels=rows), 130, lr_scheduler_type="constant")
    trainer.add_callback(averaged_for_evaluation(evaluate, 20, wrong))
    trainer.train()
