"""Round 7b, honest and odd: evaluation, averages, what a trainer keeps and goes back to."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
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
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam, taught, text_outcome, update
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r7-dropout-stays-for-the-vote")
def dropout_stays_for_the_vote(run: Run) -> None:
    """Monte Carlo dropout: evaluations, every fifteen steps and at the end, are made in training mode on purpose, eight
    passes whose probabilities are averaged."""
    model = Classifier(drop=0.25)
    *check, answers = documents(256, apart(1))

    @torch.no_grad()
    def vote() -> float:
        with torch.random.fork_rng():
            torch.manual_seed(4)
            chance = torch.stack([model(*check).softmax(1) for _ in range(8)]).mean(0)
        return float(F.nll_loss(chance.log(), answers))

    outcome(run, vote)
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(90):
        batch = documents(24)
        update(run, doctor, optimizer, F.cross_entropy(model(*batch[:2]), batch[2]), batch)
        if step % 15 == 14:
            vote()


class OverEight(nn.BatchNorm2d):
    """Ghost batch norm: in training each eight rows are normalised by themselves."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return torch.cat([super(OverEight, self).forward(part) for part in x.split(8)])


@honest("r7-norms-over-eight-rows")
def norms_over_eight_rows(run: Run) -> None:
    """Lightning. A batch of 64 is normalised in eights (ghost batch norm): what comes out for a row depends on which seven
    stand beside it, and the running statistics move eight times in a step."""
    seed = run.draw.randrange(999)
    net = cnn()
    for i, part in enumerate(net):
        if isinstance(part, nn.BatchNorm2d):
            net[i] = OverEight(part.num_features)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    fit(run, lit(net, classify, adam), loader(*pictures(640, seed), size=64), 60)


@honest("r7-entropy-in-place-of-labels")
def entropy_in_place_of_labels(run: Run) -> None:
    """Adaptation without labels (Tent): a trained network meets darker, noisier pictures. Its batch norms turn to the
    batch's own statistics, and their gains and biases alone are trained to make its answers more certain."""
    seed = run.draw.randrange(999)
    net = cnn()
    taught(net, lambda: pictures(48, seed), classify, 100)

    def darker(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return 0.4 * x + 0.12 * torch.randn(x.shape, generator=own), y

    class_outcome(run, net, darker(256, apart(1)))
    net.requires_grad_(False)
    learned = []
    for part in net:
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(True)
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
            learned += [part.weight, part.bias]

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        scores = m(x).log_softmax(1)
        return -(scores.exp() * scores).sum(1).mean()

    train(run, net, torch.optim.Adam(learned, lr=3e-3), lambda: darker(48)[0], loss, 50)


@honest("r7-back-to-the-best")
def back_to_the_best(run: Run) -> None:
    """Every twelve steps the model is judged; where it is worse than it has been, the best weights and their optimizer's
    state are loaded again and the rate is halved. It begins high, on purpose."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    check = language.rows(48, 24, apart(2))
    optimizer = adam(model, 3e-2)
    doctor = run.watch(model, optimizer)
    best, kept, rate = 9.0, copy.deepcopy((model.state_dict(), optimizer.state_dict())), 3e-2
    for step in range(1, 145):
        rows = language.rows(12, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)
        if step % 12:
            continue
        now = judged(model, lambda: next_loss(model, check))
        if now < best:
            best, kept = now, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        else:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
            rate /= 2
            optimizer.param_groups[0]["lr"] = rate


@honest("r7-targets-are-past-guesses")
def targets_are_past_guesses(run: Run) -> None:
    """Temporal ensembling: of 160 pictures 24 have labels. Each picture is drawn towards the mean of what was said of it in
    earlier epochs, kept in a table by row, with a weight that rises from zero; the loss rises with it."""
    seed = run.draw.randrange(999)
    model = cnn(drop=0.3)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(160, seed)
    known = torch.arange(160) < 24
    said, target = torch.zeros(160, 4), torch.zeros(160, 4)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for epoch in range(18):
        for rows in torch.randperm(160).split(40):
            seen = x[rows] + 0.1 * torch.randn(len(rows), 1, 8, 8)
            scores = model(seen)
            labels = torch.where(known[rows], y[rows], -100)
            loss = F.cross_entropy(scores, labels, reduction="sum") / 8
            loss = loss + min(1.0, epoch / 10) * 3 * F.mse_loss(scores.softmax(1), target[rows])
            said[rows] = 0.6 * said[rows] + 0.4 * scores.detach().softmax(1)
            update(run, doctor, optimizer, loss, {"x": seen, "labels": labels, "rows": rows})
        target.copy_(said / (1 - 0.6 ** (epoch + 1)))


@honest("r7-only-the-harder-half")
def only_the_harder_half(run: Run) -> None:
    """accelerate. Selective backpropagation: of 48 texts the 24 of highest loss are learned from; the others have no
    gradient, and the loss that is told is that of the hard ones."""
    model = Classifier()
    class_outcome(run, model, documents(256, apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        each = F.cross_entropy(m(b[0], b[1]), b[2], reduction="none")
        return each.topk(len(each) // 2).values.mean()

    prepared(run, model, adam(model, 2e-3), loader(*documents(960), size=48), loss, 4)


@honest("r7-average-takes-over")
def average_takes_over(run: Run) -> None:
    """transformers' Trainer. Switch EMA: at the end of every twenty steps the running average of the weights is put in
    their place and training goes on from there, with the optimizer's moments as they were."""
    from transformers import TrainerCallback

    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    average = [p.detach().clone() for p in model.parameters()]

    class Switching(TrainerCallback):  # type: ignore[misc]
        @torch.no_grad()
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for a, p in zip(average, model.parameters(), strict=True):
                a.lerp_(p, 0.2)
                if state.global_step % 20 == 0:
                    p.copy_(a)

    rows = language.rows(480, 20)
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 90, learning_rate=8e-3, more={"callbacks": [Switching()]}).train()


@honest("r7-every-batch-three-times")
def every_batch_three_times(run: Run) -> None:
    """Data echoing: reading is slow, so each batch of sounds that was read is learned from three times in a row, with other
    noise each time; neighbouring steps see the same labels."""
    model = Listener()
    check = sounds(256, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(50):
        x, y = sounds(32, noise=0.4)
        for _ in range(3):
            batch = x + 0.5 * torch.randn_like(x), y
            update(run, doctor, optimizer, classify(model, batch), batch)
