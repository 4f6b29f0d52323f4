"""Round 20b, honest and odd: training in stages, curricula, and networks that are rebuilt on the way."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    documents,
    endless,
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
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Translator
from benchmarks.robustness.loops.round7b_tools import update
from torch import Tensor, nn
from torch.nn import functional as F


class Weak(nn.Module):
    """A small learner that also reads what the learner before it saw last."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.see, self.say = nn.Linear(inputs, 10), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.see(x).relu()
        return seen, self.say(seen).flatten()


class Boosted(nn.Module):
    """A mean, and a sum of weak learners."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.learners = nn.ModuleList()
        self.share = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        total, seen = self.mean.expand(len(x)), x.new_zeros(len(x), 0)
        for learner in self.learners:
            seen, said = learner(torch.cat([x, seen], 1))
            total = total + self.share * said
        return total


@honest("r20b-each-learner-fits-what-is-left")
def each_learner_fits_what_is_left(run: Run) -> None:
    """Plain loop, a number from a table by gradient boosting of small networks (GrowNet, Badirli et al. 2020). Six
    times a learner is added to the model and fitted alone to what the others left over, with Adam made anew; then all
    of them and their common share are corrected together. The model begins with no learner and one idle parameter."""
    x, y = table(800, 3, apart(run.draw.randrange(999)))
    data = endless(loader(x, y, size=64))
    model = Boosted(y.mean())
    number_outcome(run, model, table(400, 3, apart(1)))
    for stage in range(6):
        learner = Weak(6 if stage == 0 else 16)
        optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
        doctor = run.watch(learner, optimizer)
        for _ in range(18):
            batch = next(data)
            with torch.no_grad():
                seen, total = batch[0].new_zeros(len(batch[0]), 0), model(batch[0])
                for earlier in model.learners:
                    seen, _said = earlier(torch.cat([batch[0], seen], 1))
            left = batch[1] - total
            loss = F.mse_loss(model.share.detach() * learner(torch.cat([batch[0], seen], 1))[1], left)
            update(run, doctor, optimizer, loss, (batch[0], left))
        model.learners.append(learner)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        doctor = run.watch(model, optimizer)
        for _ in range(10):
            batch = next(data)
            update(run, doctor, optimizer, regress(model, batch), batch)


class Blurred(nn.Module):
    """A convolution whose answer is smoothed by a Gaussian of a width that the training sets."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.filters, self.width = nn.Conv2d(before, after, 3, padding=1), 1.0

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.filters(x)
        if self.width < 0.2:
            return seen
        kernel = (-(torch.arange(-1, 2).float() ** 2) / (2 * self.width**2)).exp()
        kernel = kernel[:, None] * kernel / kernel.sum() ** 2
        return F.conv2d(seen, kernel.expand(seen.shape[1], 1, 3, 3), padding=1, groups=seen.shape[1])


@honest("r20b-filters-blurred-less-and-less")
def filters_blurred_less_and_less(run: Run) -> None:
    """Lightning, pictures by a curriculum of smoothing (Sinha et al. 2020). Behind each convolution a fixed Gaussian
    takes away what is fine; its width is set from within the training step and falls by a tenth every six steps, until
    it is left out. The function changes under the optimizer, and the loss jumps a little at each change."""
    layers = [Blurred(1, 8), nn.ReLU(), nn.MaxPool2d(2), Blurred(8, 16), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 4))
    class_outcome(run, net, pictures(256, 4, own=apart(1)))
    seen = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal seen
        for module in model.modules():
            if isinstance(module, Blurred):
                module.width = 0.9 ** (seen // 6)
        seen += 1
        return classify(model, batch)

    module = lit(net, loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4))
    fit(run, module, loader(*pictures(640, 4, own=apart(run.draw.randrange(999))), size=32), 130)


@honest("r20b-hard-rows-wait-outside")
def hard_rows_wait_outside(run: Run) -> None:
    """transformers' Trainer with an own loss, a BERT names topics by self-paced learning (Kumar et al. 2010). After
    thirty steps on all rows one counts only while its loss is under an age that grows with the steps; some labels are
    wrong. The mean is then over the rows that are easy already, and falls near zero while wrong ones wait outside."""
    import transformers

    x, mask, y = documents(480, apart(run.draw.randrange(999)))
    wrong = torch.rand(len(y)) < 0.1
    labels = torch.where(wrong, torch.randint(0, 3, (len(y),)), y)
    model = tiny_bert()
    ids, keep, topic = documents(300, apart(1))

    def measure() -> Tensor:
        return F.cross_entropy(model(input_ids=ids, attention_mask=keep.long()).logits, topic)

    outcome(run, lambda: judged(model, measure))

    class SelfPaced(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            losses = F.cross_entropy(out.logits, inputs["labels"], reduction="none")
            since = self.state.global_step - 30
            easy = (losses < (0.7 + 0.015 * since if since >= 0 else 99.0)).float().detach()
            loss = (easy * losses).sum() / easy.sum().clamp(min=1)
            return (loss, out) if return_outputs else loss

    data = examples(input_ids=x, attention_mask=mask.long(), labels=labels)
    hf_trainer(run, model, data, 120, SelfPaced, learning_rate=3e-3, lr_scheduler_type="constant").train()


@honest("r20b-last-words-by-reward-first")
def last_words_by_reward_first(run: Run) -> None:
    """Plain loop, an encoder and a decoder say a row backwards by MIXER (Ranzato et al. 2016). After a time of
    likelihood alone the last two words, then the last four, are sampled and taught by the share that is right, less a
    baseline with an optimizer of its own; cross-entropy stays with those before. The loss changes its meaning twice."""
    words, length = 8, 6
    model, baseline = Translator(words), nn.Linear(48, 1)

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.randint(0, words, (count, length), generator=own)

    def states(source: Tensor, shown: Tensor) -> Tensor:
        state = model.encoder[1](model.encoder[0](source))[1]
        return model.decoder[1](model.decoder[0](shown), state)[0]

    @torch.no_grad()
    def said(source: Tensor, shown: Tensor, greedy: bool) -> Tensor:
        while shown.shape[1] <= length:
            chance = model(source, shown)[:, -1].softmax(1)
            following = chance.argmax(1, keepdim=True) if greedy else torch.multinomial(chance, 1)
            shown = torch.cat([shown, following], 1)
        return shown

    start, check = torch.full((300, 1), words), rows(300, apart(1))

    def measure() -> Tensor:
        return 1 - (said(check, start, True)[:, 1:] == check.flip(1)).float().mean()

    outcome(run, lambda: judged(model, measure))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guess = torch.optim.Adam(baseline.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for step in range(190):
        free = 0 if step < 130 else 2 if step < 160 else 4
        if step == 130:
            optimizer.param_groups[0]["lr"] = 2e-3
        source = rows(48)
        target = source.flip(1)
        shown = torch.cat([start[:48], target[:, : length - free]], 1)
        shown = said(source, shown, False) if free else shown
        seen = states(source, shown[:, :-1])
        scores = model.head(seen).log_softmax(2)
        told = length - free
        loss = F.nll_loss(scores[:, :told].flatten(0, 1), target[:, :told].flatten(), reduction="sum") / 48
        if free:
            right = (shown[:, 1:] == target)[:, told:].float()
            expected = baseline(seen[:, told:].detach()).squeeze(2)
            reward = right.mean(1, keepdim=True)
            logp = scores[:, told:].gather(2, shown[:, 1 + told :, None]).squeeze(2)
            loss = loss - ((reward - expected.detach()) * logp).sum(1).mean()
            guess.zero_grad()
            F.mse_loss(expected, reward.expand_as(expected)).backward()
            guess.step()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        doctor.step(loss, (source, target))
        run.note(loss)


class Velocity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x, t], 1))
        return out

    @torch.no_grad()
    def drawn(self, noise: Tensor, steps: int) -> Tensor:
        for k in range(steps):
            noise = noise + self(noise, torch.full((len(noise), 1), k / steps)) / steps
        return noise


def far(a: Tensor, b: Tensor) -> Tensor:
    """The energy distance of two sets of points."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def straight_way(model: nn.Module, batch: Any) -> Tensor:
    noise, data = batch
    t = torch.rand(len(data), 1)
    return F.mse_loss(model((1 - t) * noise + t * data, t), data - noise)


@honest("r20b-straightened-on-its-own-pairs")
def straightened_on_its_own_pairs(run: Run) -> None:
    """accelerate's loop, a rectified flow in two stages (Liu et al. 2023). The first learns from data paired with noise
    by chance; the second goes on with the same weights and a new Adam, and its data are pairs that the flow itself made
    once: noise and where it ended. No data are read any more, and the loss falls to a twentieth at the change."""
    own = apart(run.draw.randrange(999))

    def points(count: int, own: torch.Generator) -> Tensor:
        corner = 2.0 * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
        which = torch.randint(0, 4, (count,), generator=own)
        return corner[which] + 0.25 * torch.randn(count, 2, generator=own)

    net = Velocity()
    check, noise = points(400, apart(1)), torch.randn(400, 2, generator=apart(2))
    outcome(run, lambda: judged(net, lambda: far(net.drawn(noise, 2), check)))
    data = loader(torch.randn(2560, 2, generator=own), points(2560, own), size=128)
    prepared(run, net, torch.optim.Adam(net.parameters(), lr=3e-3), data, straight_way, 5)
    start = torch.randn(2560, 2, generator=own)
    pairs = loader(start, net.drawn(start, 20), size=128)
    prepared(run, net, torch.optim.Adam(net.parameters(), lr=1e-3), pairs, straight_way, 4)


class Branches(nn.Module):
    """Three ways through a block, each with a norm, or after `fuse` one convolution that does the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.point = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.Conv2d(width, width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "one"):
            return self.one(x).relu()
        parts = [norm(part) for norm, part in zip(self.norms, (self.wide(x), self.point(x), x), strict=True)]
        return torch.stack(parts).sum(0).relu()

    @torch.no_grad()
    def fuse(self) -> None:
        width = len(self.wide.weight)
        kernels = [self.wide.weight, F.pad(self.point.weight, (1, 1, 1, 1))]
        kernels.append(F.pad(torch.eye(width)[:, :, None, None], (1, 1, 1, 1)))
        one = nn.Conv2d(width, width, 3, 1, 1)
        one.weight.zero_()
        one.bias.zero_()  # type: ignore[union-attr]
        for kernel, norm in zip(kernels, self.norms, strict=True):
            gain = norm.weight / (norm.running_var + norm.eps).sqrt()
            one.weight += kernel * gain[:, None, None, None]
            one.bias += norm.bias - norm.running_mean * gain  # type: ignore[operator]
        self.one = one
        del self.wide, self.point, self.norms


@honest("r20b-three-branches-become-one")
def three_branches_become_one(run: Run) -> None:
    """Plain loop, a RepVGG names pictures (Ding et al. 2021). After ninety steps the three ways of each block and their
    norms are fused into one convolution with a bias, by arithmetic; parameters vanish, there is no norm any more, and
    the fused network is tuned at a tenth of the rate for forty steps by an optimizer of its own before it ships."""
    enter = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(enter, Branches(12), nn.MaxPool2d(2), Branches(12), nn.Flatten(), nn.Linear(48, 4))
    class_outcome(run, net, pictures(256, 6, own=apart(1)))
    data = endless(loader(*pictures(640, 6, own=apart(run.draw.randrange(999))), size=32))

    def steps(count: int, rate: float) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
        doctor = run.watch(net, optimizer, scheduler=schedule)
        for _ in range(count):
            batch = next(data)
            update(run, doctor, optimizer, classify(net, batch), batch)
            schedule.step()

    steps(90, 0.03)
    for block in net:
        if isinstance(block, Branches):
            block.fuse()
    steps(40, 0.003)
