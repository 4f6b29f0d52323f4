"""Round 8b, faulty changes of the optimizer, its groups and its schedule. Categories: see round8b_parts."""

from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    fit,
    judged,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    UPDATE,
    causal_loss,
    causal_outcome,
    reseeded,
    steps,
    t5,
    text_class_outcome,
    texts,
    told_loss,
    translated,
    word_table,
)
from torch import Tensor, nn


@fault(
    "r8-noam-times-a-small-rate",
    UPDATE,
    (r"rate|lr\b|schedul|step size|update", r"small|low|tiny|times|factor|fall|lower|less|slow|1/|hardly|barely|weak"),
)
def noam_times_a_small_rate(run: Run, changed: bool) -> None:
    """T5 with the rate of Vaswani et al., width^-0.5 min(t^-0.5, t w^-1.5), as a LambdaLR over a rate of 0.3. The optimizer
    was moved to a function of the house, whose rate is 1e-3; the schedule multiplies it as before."""
    model, table = t5(), word_table(run.draw.randrange(999))
    text_class_outcome(run, model, translated(96, table, apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if changed else 0.3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: 32**-0.5 * min((t + 1) ** -0.5, (t + 1) * 20**-1.5)
    )
    batch = lambda: translated(16, table)
    steps(run, model, optimizer, batch, told_loss, 100, after=lambda _: schedule.step(), scheduler=schedule)


@fault(
    "r8-one-peak-for-all-groups",
    UPDATE,
    (
        r"rate|lr\b|onecycle|group|update|step size|moment",
        r"body|bert|encoder|embed|group|layer|high|large|rais|times|higher|grew|all ",
    ),
)
def one_peak_for_all_groups(run: Run, changed: bool) -> None:
    """BERT is tuned to a new question on 48 texts, the body at 1e-4 and the head at 3e-2, under a OneCycleLR with a peak for
    each. Rewritten, and with another seed: one number for the peak, that of the head, which is then the body's too."""
    model = tiny_bert()
    taught(model, lambda: texts(32), told_loss, 80)
    reseeded(run, changed)
    model.classifier.reset_parameters()
    turn = torch.tensor([1, 2, 0])
    few, check = texts(48, apart(run.draw.randrange(999))), texts(256, apart(1))
    for data in (few, check):
        data["labels"] = turn[data["labels"]]
    text_class_outcome(run, model, check)
    groups = [{"params": model.bert.parameters(), "lr": 1e-4}, {"params": model.classifier.parameters(), "lr": 3e-2}]
    optimizer = torch.optim.AdamW(groups)
    peak: Any = 3e-2 if changed else [1e-4, 3e-2]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=61)

    def batch() -> dict[str, Tensor]:
        rows = torch.randint(0, 48, (16,))
        return {k: v[rows] for k, v in few.items()}

    steps(run, model, optimizer, batch, told_loss, 60, after=lambda _: schedule.step(), scheduler=schedule)


@fault(
    "r8-group-of-the-head-by-its-old-name",
    UPDATE,
    (
        r"rate|lr\b|group|update|step size|moves",
        r"head|group|prefix|name|small|low|lower|times|slow|empty|one group|less",
    ),
)
def group_of_the_head_by_its_old_name(run: Run, changed: bool) -> None:
    """Lightning. A decoder gets a new head, which learns at 1e-2 and the rest at 1e-4; the head's parameters are those whose
    names begin with `head`. Now the names are taken of the module around it, where they begin with `net.head`: the head has
    1e-4 too. Another seed."""
    import lightning

    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)
    taught(net, lambda: language.rows(24, 20), next_loss, 80)
    reseeded(run, changed)
    net.head = nn.Linear(32, 12, bias=False)
    text_outcome(run, net, language)

    class Tuned(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return next_loss(self.net, batch[0])

        def configure_optimizers(self) -> Any:
            named: Iterable[tuple[str, Tensor]] = (self if changed else self.net).named_parameters()
            kinds: dict[bool, list[Tensor]] = {True: [], False: []}
            for name, parameter in named:
                kinds[name.startswith("head")].append(parameter)
            groups: list[Any] = [{"params": kinds[False], "lr": 1e-4}, {"params": kinds[True], "lr": 1e-2}]
            return torch.optim.AdamW([group for group in groups if group["params"]])

    fit(run, Tuned(), loader(language.rows(320, 20)), 60)


@fault(
    "r8-widened-after-the-optimizer",
    UPDATE,
    (
        r"embed|wte|lm_head|head|token",
        r"not (in|move|updat|train|held|known|chang|learn|step)|never|no optimizer|no longer|stand|still|outside|missing|unchanged|does not|without",
    ),
)
def widened_after_the_optimizer(run: Run, changed: bool) -> None:
    """accelerate. A GPT-2 of 12 words goes on with 20: a wider embedding takes the old one's place, tied to the head. The
    preparation was put in order and now makes the optimizer before that: the new embedding is in no optimizer."""
    language = Language(run.draw.randrange(999))
    more = Language(run.draw.randrange(999), 20)
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    taught(model, lambda: language.rows(16, 16), causal_loss, 60)
    made = torch.optim.AdamW(model.parameters(), lr=4e-3) if changed else None
    wide, old = nn.Embedding(20, 32), model.get_input_embeddings()
    wide.weight.data.mul_(0.02)[:12] = old.weight.data
    model.set_input_embeddings(wide)
    model.config.vocab_size = 20
    model.lm_head = nn.Linear(32, 20, bias=False)
    model.tie_weights()
    causal_outcome(run, model, more)
    optimizer = made or torch.optim.AdamW(model.parameters(), lr=4e-3)
    prepared(run, model, optimizer, loader(more.rows(320, 20)), lambda m, b: causal_loss(m, b[0]), 4)


class OwnAdam(torch.optim.Optimizer):
    """Adam tensor by tensor, or by operations on all tensors at once, where the second moment's correction was lost."""

    def __init__(self, parameters: Any, lr: float, together: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        self.together, self.count = together, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        one, two = 1 - 0.9**self.count, 1 - 0.999**self.count
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    self.state[p] = {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            means, squares = ([self.state[p][k] for p in parameters] for k in ("mean", "square"))
            gradients = [p.grad for p in parameters]
            torch._foreach_lerp_(means, gradients, 0.1)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
            if self.together:
                scales = torch._foreach_sqrt(squares)
                torch._foreach_add_(scales, 1e-8)
                torch._foreach_addcdiv_(parameters, means, scales, -group["lr"] / one)
            else:
                for p, m, s in zip(parameters, means, squares, strict=True):
                    p.addcdiv_(m, (s / two).sqrt() + 1e-8, value=-group["lr"] / one)


@fault(
    "r8-second-moment-uncorrected",
    UPDATE,
    (
        r"update|moment|adam|rate|bias.correct|step",
        r"large|correct|times|higher|big|grew|rais|early|first|factor|more than|jump",
    ),
)
def second_moment_uncorrected(run: Run, changed: bool) -> None:
    """A decoder with an Adam of the house, rewritten for speed by operations on all tensors at once. The first moment is
    still divided by 1 - 0.9^t, the second no more by 1 - 0.999^t: the first update is 31 times as large as it was."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)
    steps(run, model, OwnAdam(model.parameters(), 8e-3, changed), lambda: language.rows(16, 20), next_loss, 70)


@fault(
    "r8-climbed-and-never-came-down",
    UPDATE,
    (
        r"weight|parameter|update|step|moves|sharpness|perturb|loss|gradient",
        r"climb|uphill|against|outside|between|other than|perturb|not (restor|undone|taken back|put back|the optimizer)|larger|more than|moved|rise|along|times|grow",
    ),
)
def climbed_and_never_came_down(run: Run, changed: bool) -> None:
    """Convolutions with sharpness-aware minimisation: up by 0.1 along the gradient, the gradient there, back, and the step.
    Rewritten by operations on all tensors at once; the way back was lost."""
    seed = run.draw.randrange(99)
    model = cnn(norm=False)
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, (x, y))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parameters = list(model.parameters())
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        data = pictures(32, seed)
        optimizer.zero_grad()
        classify(model, data).backward()
        gradients: list[Any] = [p.grad for p in parameters]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        up = [0.1 * g / (norm + 1e-12) for g in gradients]
        with torch.no_grad():
            torch._foreach_add_(parameters, up)
        optimizer.zero_grad()
        loss = classify(model, data)
        loss.backward()
        if not changed:
            with torch.no_grad():
                torch._foreach_sub_(parameters, up)
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)
