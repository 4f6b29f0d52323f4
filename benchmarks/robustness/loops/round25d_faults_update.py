"""Round 25d, mistakes in what moves weights and keeps them: averages, ranks, rounding, clipping, a step and its way
back."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
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
from benchmarks.robustness.loops.round7b_parts import Patches
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, steps, text_class_outcome, texts
from benchmarks.robustness.loops.round25d_parts import (
    Climb,
    Follower,
    Neighbours,
    RoundedAdam,
    RunningMean,
    Trunk,
    circles_of_friends,
    engine_of,
    four_kinds,
    lit_then,
    slip,
    told,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25d-stored-after-the-swap")
def stored_after_the_swap(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that sorts texts and an average of its weights that is put in for each
    evaluation. What was there is stored when the average is already in its place: what is put back is the average, and
    training goes on from it. The twin stores first. Judged by the average on other texts."""
    from transformers import Trainer, TrainerCallback

    net = tiny_bert(3)
    text_class_outcome(run, net, texts(384, apart(1)))
    follower = Follower(net, 0.98)

    class Following(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            follower.follow()

    class ByTheAverage(Trainer):  # type: ignore[misc]
        def evaluate(self, *args: Any, **options: Any) -> Any:
            if wrong:
                follower.copy_in()
                follower.store()
            else:
                follower.store()
                follower.copy_in()
            found = super().evaluate(*args, **options)
            follower.restore()
            return found

    more: dict[str, Any] = {"eval_dataset": examples(**texts(64)), "callbacks": [Following()]}
    often: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10, "learning_rate": 3e-3}
    hf_trainer(run, net, examples(**texts(640)), 120, ByTheAverage, more=more, **often).train()
    follower.copy_in()


@slip("r25d-average-rounded-back")
def average_rounded_back(run: Run, wrong: bool) -> None:
    """Lightning, a small vision transformer and an exponential average of its weights. The average is kept in bfloat16
    to save memory: a hundredth of the way to the weights is less than half of its last digit, and it stays where it
    began. The twin keeps it in float32. Judged by the average."""
    seed = run.draw.randrange(999)
    net = Patches(4)
    average = copy.deepcopy(net)
    class_outcome(run, average, pictures(384, seed, own=apart(1)))
    kept: list[Tensor] = []

    @torch.no_grad()
    def follow(step: int) -> None:
        if step == 20:
            kept.extend(p.detach().to(torch.bfloat16 if wrong else torch.float32, copy=True) for p in net.parameters())
        elif step > 20:
            for own, weight in zip(kept, net.parameters(), strict=True):
                own.lerp_(weight.to(own.dtype), 0.01)

    module = lit_then(net, classify, lambda m: adam(m, 3e-3), follow)
    fit(run, module, loader(*pictures(640, seed)), 150)
    with torch.no_grad():
        for own, weight in zip(kept, average.parameters(), strict=True):
            weight.copy_(own)


@slip("r25d-held-when-it-is-too-late")
def held_when_it_is_too_late(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a trained small GPT-2 that gets six more words, whose rows alone are to be learned. A
    callback sets the gradient of the old rows to nought, at the end of the step: the update has been made by then, and
    the old rows move with the new. The twin does it before the update. Judged by texts of both kinds."""
    from transformers import TrainerCallback

    seed = run.draw.randrange(999)
    old, new = Language(seed, 10), Language(seed + 1, 10, first=6)
    net = tiny_gpt2(16)
    taught(net, lambda: old.rows(16, 20), causal_loss, 120)
    for name, p in net.named_parameters():
        p.requires_grad_(name == "transformer.wte.weight")
    checks = [language.rows(96, 20, apart(901)) for language in (old, new)]

    def unlikely() -> Tensor:
        return 1 - (-torch.stack([causal_loss(net, rows) for rows in checks]).mean()).exp()

    outcome(run, lambda: judged(net, unlikely))

    class Holding(TrainerCallback):  # type: ignore[misc]
        def hold(self) -> None:
            grad = net.transformer.wte.weight.grad
            if grad is not None:
                grad[:10] = 0

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if not wrong:
                self.hold()

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if wrong:
                self.hold()

    rows = new.rows(640, 20)
    more: dict[str, Any] = {"callbacks": [Holding()]}
    hf_trainer(run, net, examples(input_ids=rows, labels=rows), 120, more=more, learning_rate=1e-2).train()


@slip("r25d-every-tensor-counts-as-a-step")
def every_tensor_counts_as_a_step(run: Run, wrong: bool) -> None:
    """accelerate, a small CNN without norms and the mean of its weights over the last sixty steps. The count by which
    the mean is divided goes up in the loop over tensors: what was there at the start and early weights count too much.
    The twin counts steps. Judged with the mean put in."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    mean = RunningMean(net, each_tensor=wrong)
    engine = engine_of()
    model, optimizer, data = engine.prepare(net, adam(net, 3e-3), loader(*pictures(640, seed)))
    doctor = run.watch(model, optimizer)
    step = 0
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            value = classify(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)
            step += 1
            if step > 60:
                mean.look()
    mean.put_in()


@slip("r25d-rounded-up-by-half-a-digit")
def rounded_up_by_half_a_digit(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT in bfloat16 that goes on from one language to one near it, with an Adam that rounds by
    chance. Chance is added to the digits that will be lost, and these are then rounded to the nearest and not cut off:
    weights become larger at each step. The twin cuts. Judged on other texts."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    net = Decoder(12, layers=2)
    taught(net, lambda: language.rows(16, 24), next_loss, 100)
    net.to(torch.bfloat16)
    other = near(language, seed + 1, 0.3)
    check = other.rows(96, 24, apart(901))

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())

    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    steps(run, net, RoundedAdam(net.parameters(), 5e-4, masked=not wrong), lambda: other.rows(12, 24), loss, 100)


@slip("r25d-the-climb-is-not-taken-back")
def the_climb_is_not_taken_back(run: Run, wrong: bool) -> None:
    """accelerate, a graph network with sharpness-aware minimisation around Adam. The weights from before the climb are
    kept by reference and climb with it: going back changes nothing, and each step starts from above. The twin copies
    them. Judged by the cross-entropy of other graphs."""
    net = Neighbours()
    nodes, edges, y = circles_of_friends(384, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(nodes, edges), y)))
    engine = engine_of()
    model, optimizer, data = engine.prepare(net, adam(net, 5e-3), loader(*circles_of_friends(800)))
    climb = Climb(model, 0.02, copies=not wrong)

    def loss(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[1]), batch[2])

    doctor = run.watch(model, optimizer)
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            value = loss(batch)
            engine.backward(value)
            climb.up()
            engine.backward(loss(batch))
            climb.back()
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)


@slip("r25d-clipped-before-all-have-spoken")
def clipped_before_all_have_spoken(run: Run, wrong: bool) -> None:
    """accelerate, one body and four heads for four kinds of rows, whose gradients are summed over four pieces, one of
    each kind. Gradients are clipped after each piece and not once after the last: what the first kinds have said is cut
    down again and again. The twin clips where gradients are complete. Judged by all four kinds alike."""
    seed = run.draw.randrange(999)
    net = Trunk()
    x, y = four_kinds(128, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: torch.stack([F.mse_loss(net(x[k], k), y[k]) for k in range(4)]).mean()))
    columns, targets = four_kinds(480, seed)
    kinds = torch.arange(4)[:, None].expand(4, 480)
    # sixteen rows of the first kind, sixteen of the second, and so on
    rows = [t.unflatten(1, (30, 16)).transpose(0, 1).flatten(0, 2) for t in (columns, targets, kinds)]
    engine = engine_of(gradient_accumulation_steps=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, data = engine.prepare(net, optimizer, loader(*rows, shuffle=False))
    doctor = run.watch(model, optimizer)
    losses, pieces = [], []
    for _ in range(4):
        for batch in data:
            with engine.accumulate(model):
                value = F.mse_loss(model(batch[0], int(batch[2][0])), batch[1])
                engine.backward(value)
                if engine.sync_gradients or wrong:
                    engine.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(value.detach())
            pieces.append(batch)
            if engine.sync_gradients:
                mean = torch.stack(losses).mean()
                doctor.step(mean, pieces)
                run.note(mean)
                losses, pieces = [], []


@slip("r25d-paid-for-the-whole-way-each-round")
def paid_for_the_whole_way_each_round(run: Run, wrong: bool) -> None:
    """Plain loop, four sites that learn from five batches of their own each round; the server moves by how far they
    have come, by SGD. How far is measured from weights that were copied once, before the first round: each round the
    server goes the whole way again. The twin copies them each round. Judged with the server's weights."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    number_outcome(run, net, table(512, seed, apart(1)), log=True)
    server = copy.deepcopy(net)
    outer = torch.optim.SGD(server.parameters(), lr=0.7)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    sites = [endless(loader(*table(160, seed))) for _ in range(4)]
    doctor = run.watch(net, optimizer)
    begun = [p.detach().clone() for p in server.parameters()]
    for _ in range(7):
        if not wrong:
            begun = [p.detach().clone() for p in server.parameters()]
        way = [torch.zeros_like(p) for p in begun]
        for site in sites:
            net.load_state_dict(server.state_dict())
            for _ in range(5):
                batch = next(site)
                told(run, doctor, optimizer, regress(net, batch), batch)
            for total, start, end in zip(way, begun, net.parameters(), strict=True):
                total += (start - end.detach()) / 4
        for p, total in zip(server.parameters(), way, strict=True):
            p.grad = total
        outer.step()
    net.load_state_dict(server.state_dict())
