"""Blind round 6, honest and odd: other updates, other trainers, what is done between the steps."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
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
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from torch import Tensor, nn
from torch.nn import functional as F


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


@honest("r6-weights-drawn-to-zero")
def weights_drawn_to_zero(run: Run) -> None:
    """Proximal steps for an L1 penalty: after each step of SGD all weights of the first layer come nearer to zero by a
    fixed amount, and most of them are zero exactly at the end; twenty of its columns mean nothing."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return torch.cat([x, torch.randn(count, 20, generator=own)], 1), y

    model = mlp(26, 32, 1)
    number_outcome(run, model, rows(512, apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    doctor = run.watch(model, optimizer)
    first = model[0].weight
    for _ in range(160):
        batch = rows(32)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            first.copy_(first.sign() * (first.abs() - 0.002).clamp_min(0))
        doctor.step(loss, batch)
        run.note(loss)


@honest("r6-never-below-zero")
def never_below_zero(run: Run) -> None:
    """A network that must rise with each of its inputs: weights are cut at zero after every step, so that many of them
    stand at zero, and begin as absolute values."""
    model = mlp(4, 32, 1, act=nn.Tanh)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 4, generator=own)
        return x, x[:, 0] + (2 * x[:, 1]).tanh() + x[:, 2].clamp_min(0) + 0.1 * torch.randn(count, generator=own)

    def cut() -> None:
        with torch.no_grad():
            for part in (model[0], model[2]):
                part.weight.clamp_(min=0)

    for part in (model[0], model[2]):
        part.weight.data.abs_()
    number_outcome(run, model, rows(512, apart(1)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        batch = rows(32)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        optimizer.step()
        cut()
        doctor.step(loss, batch)
        run.note(loss)


class Turning(nn.Module):
    """A recurrent network whose matrix is orthogonal at every step, by a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, 24), nn.Linear(24, 1)
        self.turn = nn.utils.parametrizations.orthogonal(nn.Linear(24, 24, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 24)
        for t in range(x.shape[1]):
            h = self.turn(h) + self.enter(x[:, t])
            h = h.sign() * (h.abs() - 0.01).clamp_min(0)
        out: Tensor = self.leave(h)
        return out


@honest("r6-orthogonal-for-ever")
def orthogonal_for_ever(run: Run) -> None:
    """What stood first in a row of sixteen is to be known at its end, by a recurrent network whose matrix stays orthogonal;
    most inputs have no part in the answer."""
    model = Turning()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 16, 2, generator=own)
        return x, x[:, 0, 0] + 0.5 * x[:, 3, 1]

    number_outcome(run, model, rows(256, apart(1)))
    train(run, model, adam(model), lambda: rows(48), regress, 180, clip=1.0)


@honest("r6-four-apart-then-averaged")
def four_apart_then_averaged(run: Run) -> None:
    """Local SGD: four replicas take five steps each on data of their own, then their average is where all go on; the one
    that is watched jumps at each meeting."""
    language = Language(run.draw.randrange(999))
    models = [Decoder(12) for _ in range(4)]
    for other in models[1:]:
        other.load_state_dict(models[0].state_dict())
    language_outcome(run, models[0], language)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.9) for m in models]
    doctor = run.watch(models[0], optimizers[0])
    for step in range(1, 61):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            rows = language.rows(8, 20)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            loss.backward()
            optimizer.step()
            if i == 0:
                doctor.step(loss, rows)
                run.note(loss)
        if step % 5 == 0:
            with torch.no_grad():
                for ps in zip(*(m.parameters() for m in models), strict=True):
                    mean = torch.stack(ps).mean(0)
                    for p in ps:
                        p.copy_(mean)


@honest("r6-rate-from-the-loss")
def rate_from_the_loss(run: Run) -> None:
    """Polyak's step: the rate is set by hand before every step, the loss over the square of the gradient's norm, at most
    one; it goes up and down by a factor of a hundred."""
    seed = run.draw.randrange(999)
    model = mlp(6, 48, 1)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    for _ in range(140):
        batch = table(64, seed)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        optimizer.param_groups[0]["lr"] = min(0.3, 0.3 * float(loss.detach()) / (square + 1e-9))
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r6-rate-found-by-trying")
def rate_found_by_trying(run: Run) -> None:
    """A range test in front of the run: the rate grows from 1e-5 until the loss has doubled, then weights and optimizer
    are put back and the run begins at a tenth of the best; the doctor watches all of it."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    doctor = run.watch(model, optimizer)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    data = endless(loader(*pictures(480, seed), size=24))

    def step() -> float:
        batch = next(data)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        return float(loss.detach())

    tried: list[tuple[float, float]] = []
    rate = 1e-5
    while rate < 10 and (not tried or tried[-1][0] < 2 * tried[0][0]):
        optimizer.param_groups[0]["lr"] = rate
        tried.append((step(), rate))
        rate *= 1.6
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    optimizer.param_groups[0]["lr"] = max(min(tried)[1] / 10, 3e-3)
    for _ in range(70):
        step()


@honest("r6-one-layer-at-a-time")
def one_layer_at_a_time(run: Run) -> None:
    """Block coordinate descent: of three layers one learns for ten steps while the others hold still, each in its turn,
    with one optimizer that skips what has no gradient."""
    seed = run.draw.randrange(999)
    model = mlp(6, 48, 48, 1)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = adam(model, 8e-3)
    doctor = run.watch(model, optimizer)
    layers = [m for m in model if isinstance(m, nn.Linear)]
    for step in range(180):
        for i, layer in enumerate(layers):
            layer.requires_grad_(i == step // 10 % 3)
        batch = table(48, seed)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r6-pictures-made-harder-by-gradient")
def pictures_made_harder(run: Run) -> None:
    """accelerate. Adversarial training: three steps up the loss are taken on the picture, within 0.08 of it, before the
    weights learn from it; the model runs four times in a step and its loss stays high."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        change = torch.zeros_like(b[0])
        for _ in range(3):
            change.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(m(b[0] + change), b[1]), change)
            change = (change.detach() + 0.04 * slope.sign()).clamp(-0.08, 0.08)
        return F.cross_entropy(m(b[0] + change), b[1])

    prepared(run, net, adam(net), loader(*pictures(480, seed)), loss, 3)


@honest("r6-two-passes-should-agree")
def two_passes_should_agree(run: Run) -> None:
    """R-Drop in transformers' Trainer: each batch goes through twice with other dropout, and the divergence between the
    two answers is added to their losses."""
    from transformers import Trainer

    class Agreeing(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            a, b = model(**inputs), model(**inputs)
            p, q = a.logits.log_softmax(1), b.logits.log_softmax(1)
            apart_ = F.kl_div(p, q, log_target=True, reduction="batchmean")
            apart_ = apart_ + F.kl_div(q, p, log_target=True, reduction="batchmean")
            loss = (a.loss + b.loss) / 2 + 0.5 * apart_
            return (loss, a) if return_outputs else loss

    model = tiny_bert(hidden_dropout_prob=0.2)
    x, mask, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=x, attention_mask=mask.long(), labels=y).loss))
    x2, mask2, y2 = documents(480)
    data = examples(input_ids=x2, attention_mask=mask2.long(), labels=y2)
    hf_trainer(run, model, data, 60, Agreeing, learning_rate=3e-3).train()


@honest("r6-noise-on-the-embeddings")
def noise_on_the_embeddings(run: Run) -> None:
    """NEFTune in transformers' Trainer: noise is added to the embeddings' output by a hook while it trains, so that no two
    passes over a batch agree."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, neftune_noise_alpha=1.0).train()


class Electra(nn.Module):
    """A small filler of gaps, and a judge of which words were replaced, with one embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(13, 24)

        def reader(width: int) -> nn.Module:
            return nn.GRU(24, width, batch_first=True, bidirectional=True)

        self.filler, self.judge = reader(8), reader(24)
        self.fill, self.doubt = nn.Linear(16, 12), nn.Linear(48, 1)


@honest("r6-replaced-words-found")
def replaced_words_found(run: Run) -> None:
    """ELECTRA in Lightning: a small model fills gaps, its words are sampled without a gradient, and a larger one tells which
    are not the true ones, with a weight of 5; that gets harder as the small one gets better."""
    language = Language(run.draw.randrange(999), sharp=2.2)
    net = Electra()

    def losses(m: Any, rows: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        gaps = torch.rand(rows.shape, generator=own) < 0.2
        scores = m.fill(m.filler(m.tokens(rows.masked_fill(gaps, 12)))[0])
        with torch.no_grad():
            words = torch.multinomial(scores.softmax(-1).flatten(0, 1), 1, generator=own).view_as(rows)
        shown = torch.where(gaps, words, rows)
        doubts = m.doubt(m.judge(m.tokens(shown))[0]).squeeze(2)
        false = F.binary_cross_entropy_with_logits(doubts, (shown != rows).float())
        return F.cross_entropy(scores[gaps], rows[gaps]), false

    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(net, lambda: sum(losses(net, check, apart(2)))))

    def loss(m: nn.Module, b: Any) -> Tensor:
        fill, false = losses(m, b[0])
        return fill + 5 * false

    fit(run, lit(net, loss, adam), loader(language.rows(640, 20)), 110)


@honest("r6-margins-to-a-number")
def margins_to_a_number(run: Run) -> None:
    """IPO: the margin between better and worse rows should be five, not as large as it can: a squared loss that begins at
    25 whatever the model is, and has a gradient from both sides."""
    language = Language(run.draw.randrange(999))
    policy = Decoder(12)
    before = adam(policy)
    for _ in range(30):
        before.zero_grad()
        next_loss(policy, language.rows(16, 16)).backward()
        before.step()
    reference = copy.deepcopy(policy).requires_grad_(False)

    def said(model: nn.Module, rows: Tensor) -> Tensor:
        return model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).sum((1, 2))

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        good, bad = language.rows(count, 16, own), language.rows(count, 16, own)
        bad[:, 8:] = bad[:, 8:].flip(1)
        return good, bad

    def loss(m: nn.Module, b: Any) -> Tensor:
        good, bad = (said(m, rows) - said(reference, rows) for rows in b)
        return (good - bad - 5).square().mean()

    check = pairs(96, apart(1))
    outcome(run, lambda: judged(policy, lambda: loss(policy, check)))
    train(run, policy, adam(policy, 1e-3), lambda: pairs(16), loss, 80, clip=1.0)
