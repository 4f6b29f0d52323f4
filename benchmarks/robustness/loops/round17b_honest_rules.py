"""Round 17b, honest and odd: rules of update, rates, and what is wound down beside them."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    fit,
    judged,
    lit,
    loader,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round10a_tools import tag_table, tagged
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn


@honest("r17b-rate-halved-until-it-holds")
def rate_halved_until_it_holds(run: Run) -> None:
    """Plain loop, convolutions over sounds by SGD with a line search in each batch (Vaswani et al. 2019). A step that
    does not help this very batch enough is taken back and tried at half of the rate, with several passes over one batch
    and weights that go to and fro; then the rate doubles, so that it moves by powers of two without a schedule."""
    model = Listener()
    check = sounds(256, apart(1), 0.5)
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    group = optimizer.param_groups[0]
    for _ in range(110):
        batch = sounds(64, noise=0.5)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        length = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        start = copy.deepcopy(model.state_dict())
        group["lr"] = min(8.0, 2 * group["lr"])
        for _ in range(12):
            optimizer.step()
            with torch.no_grad():
                if float(classify(model, batch)) <= float(loss) - 0.1 * group["lr"] * length:
                    break
            model.load_state_dict(start)
            group["lr"] /= 2
        doctor.step(loss, batch)
        run.note(loss)


class TowardsCorners(torch.optim.Optimizer):
    """Frank and Wolfe 1956 within a ball of the sum of absolute weights: all weights come nearer to one of its corners,
    which the largest entry of the gradient names."""

    def __init__(self, parameters: Any, radius: float) -> None:
        super().__init__(parameters, {"radius": radius, "lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                share = group["lr"] * 2 / (state["t"] + 1)
                at = p.grad.abs().argmax()
                corner = torch.zeros_like(p)
                corner.view(-1)[at] = -group["radius"] * p.grad.view(-1)[at].sign()
                p.lerp_(corner, share)
        return loss


@honest("r17b-a-step-towards-a-corner")
def a_step_towards_a_corner(run: Run) -> None:
    """Lightning, a sparse linear model of forty columns by Frank and Wolfe's rule, as for lasso. The first step's share
    is one, so that the start is forgotten; later ones shrink all weights and add one entry, and neither the length of
    the gradient nor all but its largest entry has any say. Most weights are zero exactly to the end."""
    own = apart(run.draw.randrange(999))
    truth = torch.zeros(40)
    truth[torch.randperm(40, generator=own)[:5]] = torch.tensor([2.0, -1.5, 1.0, -1.0, 0.5])
    x = torch.randn(1200, 40, generator=own)
    y = x @ truth + 0.3 * torch.randn(1200, generator=own)
    net = nn.Linear(40, 1, bias=False)
    outcome(run, lambda: judged(net, lambda: regress(net, (x[1000:], y[1000:]))))
    module = lit(net, regress, lambda m: TowardsCorners(m.parameters(), 6.0))
    fit(run, module, loader(x[:1000], y[:1000], size=100), 100)


@honest("r17b-cooled-down-and-taken-back")
def cooled_down_and_taken_back(run: Run) -> None:
    """Plain loop, a Llama from one steady run with branches (Hägele et al. 2024), to learn what a run of each length
    would give. Thrice the rate falls to zero within twelve steps for a measurement; twice weights and moments are then
    taken back to before and the rate is high again at once, so that the loss goes down and jumps back up."""
    language = Language(run.draw.randrange(999))
    model = llama(vocab_size=12, num_hidden_layers=1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)

    def steps(count: int, cooling: bool) -> None:
        for step in range(count):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / count if cooling else 1.0)
            rows = language.rows(12, 24)
            optimizer.zero_grad()
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)

    for branch in range(3):
        steps(25, False)
        trunk = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        steps(12, True)
        if branch < 2:
            model.load_state_dict(trunk[0])
            optimizer.load_state_dict(trunk[1])


def bodies(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 3, 32) points in noise on spheres, boxes, and cylinders, and which it is."""
    y = torch.randint(0, 3, (count,), generator=own)
    p = torch.randn(count, 3, 32, generator=own)
    ball = p / p.norm(dim=1, keepdim=True)
    box = p / p.abs().amax(1, keepdim=True)
    tube = torch.cat([p[:, :2] / p[:, :2].norm(dim=1, keepdim=True), p[:, 2:].tanh()], 1)
    out = torch.stack([ball, box, tube])[y, torch.arange(count)]
    return out + 0.05 * torch.randn(out.shape, generator=own), y


class PointSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            *(nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU()),
            *(nn.Conv1d(24, 48, 1), nn.BatchNorm1d(48), nn.ReLU()),
        )
        self.whole = nn.Sequential(nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.whole(self.each(points).amax(2))
        return out


@honest("r17b-norms-that-forget-ever-slower")
def norms_that_forget_ever_slower(run: Run) -> None:
    """Lightning, PointNet names bodies with its authors' schedule (Qi et al. 2017). The momentum of all batch norms is
    written anew by the training: half of what a norm remembers is replaced in each step at first, and that share
    halves every twenty steps down to a hundredth, together with the rate."""
    net = PointSet()
    class_outcome(run, net, bodies(256, apart(1)))
    seen = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal seen
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = max(0.01, 0.5 * 0.5 ** (seen // 20))
        seen += 1
        return classify(model, batch)

    def optimizers(model: nn.Module) -> dict[str, Any]:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fit(run, lit(net, loss, optimizers), loader(*bodies(640, apart(run.draw.randrange(999))), size=32), 120)


class Tagger(nn.Module):
    """Scores of rows of tags: by word, by the word before, and by the tag before; all begin at zero."""

    def __init__(self, words: int = 16, tags: int = 4) -> None:
        super().__init__()
        self.here, self.before = nn.Embedding(words, tags), nn.Embedding(words, tags)
        self.follow = nn.Parameter(torch.zeros(tags, tags))
        nn.init.zeros_(self.here.weight)
        nn.init.zeros_(self.before.weight)

    def forward(self, words: Tensor) -> Tensor:
        return self.here(words) + self.before(torch.cat([words.new_zeros(1), words[:-1]]))

    def score(self, words: Tensor, tags: Tensor) -> Tensor:
        return self(words)[torch.arange(len(tags)), tags].sum() + self.follow[tags[:-1], tags[1:]].sum()

    @torch.no_grad()
    def best(self, words: Tensor) -> Tensor:
        first, *rest = self(words)
        total, ways = first, []
        for scores in rest:
            value, way = (total[:, None] + self.follow).max(0)
            ways.append(way)
            total = value + scores
        tags = [int(total.argmax())]
        for way in reversed(ways):
            tags.append(int(way[tags[-1]]))
        return torch.tensor(tags[::-1])


@honest("r17b-only-mistakes-teach")
def only_mistakes_teach(run: Run) -> None:
    """Plain loop, tags of words by the averaged structured perceptron (Collins 2002), a sentence at a time. The loss is
    how far the best row of tags is above the right one, so that it is zero exactly wherever the tagger is right; the
    rate is one, weights begin at zero and stay whole numbers, and the mean of all weights so far is what is judged."""
    own = apart(run.draw.randrange(999))
    table = tag_table(own)
    model = Tagger()
    mean = copy.deepcopy(model)
    check = [(torch.tensor(w), torch.tensor(t)) for w, t in tagged(100, table, apart(1))]
    outcome(run, lambda: 1 - sum(float((mean.best(w) == t).float().mean()) for w, t in check) / len(check))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    for step, (words, tags) in enumerate(tagged(260, table, own)):
        x, y = torch.tensor(words), torch.tensor(tags)
        loss = model.score(x, model.best(x)) - model.score(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, p in zip(mean.parameters(), model.parameters(), strict=True):
                average.lerp_(p, 1 / (step + 1))
        doctor.step(loss, (x, y))
        run.note(loss)
