"""Round 22i, honest and odd: gradients that are not those of the loss, and numbers of few bits."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    documents,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def coloured(count: int, other_colour: float, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight columns that tell of a shape and one of colour; a label that is the shape's four times in five, and the
    colour's but for a share."""
    shape = (torch.rand(count, generator=own) < 0.5).float()
    y = (shape - (torch.rand(count, generator=own) < 0.2).float()).abs()
    colour = (y - (torch.rand(count, generator=own) < other_colour).float()).abs()
    x = 1.2 * (2 * shape - 1)[:, None] + torch.randn(count, 8, generator=own)
    return torch.cat([x, 2 * colour[:, None] - 1], 1), y


def cost_and_slope(model: nn.Module, place: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A place's loss, and the squared slope of it in a factor of one before the outputs."""
    factor = torch.ones((), requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(factor * model(place[0]).squeeze(1), place[1])
    return loss, torch.autograd.grad(loss, factor, create_graph=True)[0].square()


@honest("r22i-a-penalty-that-divides-the-loss")
def a_penalty_that_divides_the_loss(run: Run) -> None:
    """Plain loop, a perceptron shall not go by colour, by invariant risk minimisation as its authors' code does it
    (Arjovsky et al. 2019). The penalty is the slope of each place's loss in a factor that is one for ever; after forty
    steps its weight jumps from one to ten thousand and the loss is divided by it, so that the noted loss falls to a few
    thousandths within a step while its true part grows."""
    own = apart(run.draw.randrange(999))
    places = [coloured(4000, share, own) for share in (0.1, 0.35)]
    check = [coloured(1000, share, apart(1)) for share in (0.1, 0.35, 0.9)]
    model = mlp(9, 16, 1)

    def worst() -> Tensor:
        return torch.stack([F.binary_cross_entropy_with_logits(model(x).squeeze(1), y) for x, y in check]).max()

    outcome(run, lambda: judged(model, worst))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, betas=(0.9, 0.95))
    doctor = run.watch(model, optimizer)
    for step in range(160):
        costs, slopes = zip(*(cost_and_slope(model, place) for place in places), strict=True)
        weight = 1.0 if step < 40 else 1e4
        loss = torch.stack(costs).mean() + weight * torch.stack(slopes).mean()
        loss = loss + 3e-2 * sum(p.square().sum() for p in model.parameters())
        if weight > 1:
            loss = loss / weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, places)
        run.note(loss)


def cheapest(costs: Tensor) -> Tensor:
    """The cheapest way from one corner of each grid to the other, right and down, as ones on its fields."""
    rows, size, _ = costs.shape
    total = torch.full((rows, size + 1, size + 1), math.inf)
    total[:, 0, 1] = 0.0
    for i in range(1, size + 1):
        for j in range(1, size + 1):
            total[:, i, j] = torch.minimum(total[:, i - 1, j], total[:, i, j - 1]) + costs[:, i - 1, j - 1]
    way, row, at = torch.zeros_like(costs), torch.full((rows,), size), torch.full((rows,), size)
    each = torch.arange(rows)
    for _ in range(2 * size - 1):
        way[each, row - 1, at - 1] = 1.0
        up = (total[each, row - 1, at] <= total[each, row, at - 1]) & (row > 1) | (at == 1)
        row, at = torch.where(up, row - 1, row).clamp_min(1), torch.where(up, at, at - 1).clamp_min(1)
    return way


class AskedTwice(torch.autograd.Function):
    """Pogančić et al. 2020: backward asks the solver once more, at costs moved by the gradient; the difference of the
    two answers is what goes back."""

    @staticmethod
    def forward(ctx: Any, costs: Tensor, reach: float) -> Tensor:  # type: ignore[override]
        way = cheapest(costs)
        ctx.save_for_backward(costs, way)
        ctx.reach = reach
        return way

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        costs, way = ctx.saved_tensors
        return (cheapest(costs + ctx.reach * gradient) - way) / ctx.reach, None


def lands(seed: int, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Maps of 6 by 6 fields of 2 by 2 pixels in noise, of three kinds that cost 1, 2 and 5; the costs, the best way."""
    looks = torch.randn(3, 2, 2, generator=apart(seed + 21))
    kind = torch.randint(0, 3, (count, 6, 6), generator=own)
    x = looks[kind].permute(0, 1, 3, 2, 4).reshape(count, 1, 12, 12)
    costs = torch.tensor([1.0, 2.0, 5.0])[kind]
    return x + 0.15 * torch.randn(x.shape, generator=own), costs, cheapest(costs)


class Surveyor(nn.Module):
    """What each field of a map costs, always above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 2, 2), nn.ReLU(), nn.Conv2d(24, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(self.body(x).squeeze(1))


@honest("r22i-the-solver-is-asked-twice")
def the_solver_is_asked_twice(run: Run) -> None:
    """Plain loop, convolutions learn what fields of a map cost from best ways alone, through a solver that has no slope
    (Pogančić et al. 2020). The loss counts fields that differ, in whole numbers; backward asks the solver again at
    moved costs, and rows whose way does not change by that send nothing back at all."""
    seed = run.draw.randrange(999)
    model = Surveyor()
    x, costs, best = lands(seed, 128, apart(1))

    def too_dear() -> Tensor:
        taken = (cheapest(model(x)) * costs).sum((1, 2))
        return (taken / (best * costs).sum((1, 2)) - 1).mean()

    outcome(run, lambda: judged(model, too_dear))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        way = AskedTwice.apply(net(batch[0]), 8.0)
        return (way * (1 - batch[2]) + batch[2] * (1 - way)).mean(0).sum()

    train(run, model, adam(model), lambda: lands(seed, 16), loss, 120)


class Letters(nn.Module):
    """An LSTM over words, and the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(16, 16), nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: Tensor, mask: Tensor, moved: Tensor | float = 0.0) -> Tensor:
        share = mask[..., None].float()
        states = self.core(self.tokens(ids) + moved)[0]
        out: Tensor = self.head((states * share).sum(1) / share.sum(1))
        return out


def changed(model: nn.Module, ids: Tensor, mask: Tensor, xi: float = 0.1, reach: float = 2.0) -> Tensor:
    """Miyato et al. 2017: how much answers change when vectors of words move to where they change most."""
    with torch.no_grad():
        answers = model(ids, mask).softmax(1)

    def divergence(moved: Tensor) -> Tensor:
        return F.kl_div(model(ids, mask, moved).log_softmax(1), answers, reduction="batchmean")

    share = mask[..., None].float()
    way = F.normalize((torch.randn(*ids.shape, 16) * share).flatten(1), dim=1).view(*ids.shape, 16).requires_grad_()
    slope = torch.autograd.grad(divergence(xi * way), way)[0] * share
    return divergence(reach * F.normalize(slope.flatten(1), dim=1).view_as(slope))


@honest("r22i-towards-where-it-would-change-most")
def towards_where_it_would_change_most(run: Run) -> None:
    """Plain loop, an LSTM learns topics from thirty texts with labels and many without, by virtual adversarial training
    (Miyato et al. 2017). Each step has two passes backward, of which one is for a direction alone; the part without
    labels grows while the model learns, so that the loss need not fall, and its targets are the model's own answers."""
    own = apart(run.draw.randrange(999))
    ids, mask, y = documents(30, own)
    check = documents(400, apart(1))
    model = Letters()
    outcome(run, lambda: judged(model, lambda: (model(*check[:2]).argmax(1) != check[2]).float().mean()))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        free = documents(48)
        loss = F.cross_entropy(model(ids, mask), y) + changed(model, free[0], free[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (ids, mask, y, free[0], free[1]))
        run.note(loss)


class Workers:
    """Four who read other rows, and send each entry of a gradient as minus one, nothing, or one, and one number for
    all."""

    def __init__(self, run: Run, language: Language) -> None:
        self.run, self.language = run, language
        self.model = Decoder(12)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.doctor = run.watch(self.model, self.optimizer)

    def sent(self, slope: Tensor) -> Tensor:
        """Right in the mean: the larger an entry, the likelier it is sent."""
        slope = slope.clamp(-2.5 * slope.std(), 2.5 * slope.std())
        most = slope.abs().max().clamp_min(1e-12)
        return most * slope.sign() * (torch.rand_like(slope) < slope.abs() / most)

    def step(self) -> None:
        weights = list(self.model.parameters())
        rows = [self.language.rows(8, 25) for _ in range(4)]
        losses = [next_loss(self.model, part) for part in rows]
        told = [[self.sent(g) for g in torch.autograd.grad(loss, weights)] for loss in losses]
        for p, *parts in zip(weights, *told, strict=True):
            p.grad = torch.stack(parts).mean(0)
        self.optimizer.step()
        loss = torch.stack(losses).mean()
        self.doctor.step(loss, torch.cat(rows))
        self.run.note(loss)


@honest("r22i-slopes-of-three-values")
def slopes_of_three_values(run: Run) -> None:
    """A class of its own, a GPT learned by four workers who send ternary gradients (Wen et al. 2017). Gradients are
    written by hand and are no longer those of the loss: most entries are zero exactly, by lot, the others are as large
    as the largest, and only the mean over many steps is right."""
    language = Language(run.draw.randrange(999))
    workers = Workers(run, language)
    language_outcome(run, workers.model, language)
    for _ in range(120):
        workers.step()


class RoundedByLot(torch.optim.Optimizer):
    """AdamW in single precision on weights in bfloat16 that have no other copy; a weight between two of its numbers
    becomes one of them by lot, the nearer one more often."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.95), "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for p in group["params"]:
                state, slope = self.state[p], p.grad.float()
                if not state:
                    state["t"], state["mean"], state["square"] = 0, torch.zeros_like(slope), torch.zeros_like(slope)
                state["t"] += 1
                state["mean"].lerp_(slope, 1 - first)
                state["square"].lerp_(slope.square(), 1 - second)
                spread = (state["square"] / (1 - second ** state["t"])).sqrt() + 1e-8
                step = state["mean"] / (1 - first ** state["t"]) / spread
                exact = p.float() * (1 - rate * group["weight_decay"]) - rate * step
                bits = exact.view(torch.int32) + torch.randint(0, 1 << 16, p.shape, dtype=torch.int32)
                p.copy_((bits & -65536).view(torch.float32))


@honest("r22i-up-or-down-by-lot")
def up_or_down_by_lot(run: Run) -> None:
    """Plain loop, transformers' GPT-2 in bfloat16 throughout with no copy in single precision, by stochastic rounding
    (Zamirai et al. 2020; torchao's `bf16_stochastic_round`). Late in the schedule a step is far smaller than the
    distance of two neighbouring numbers, so that most weights stand still and a few leap by many times the rate."""
    language = Language(run.draw.randrange(999), first=3)
    model = tiny_gpt2().bfloat16()
    check = language.rows(96, 24, apart(901))

    def loss(net: Any, rows: Tensor) -> Tensor:
        return F.cross_entropy(net(input_ids=rows[:, :-1]).logits.float().flatten(0, 1), rows[:, 1:].flatten())

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = RoundedByLot(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    train(run, model, optimizer, lambda: language.rows(16, 24), loss, 120, schedule, clip=1.0)


def as_eight_bits(x: Tensor, history: Tensor, kind: torch.dtype, note: bool) -> Tensor:
    """x in eight bits and back, scaled by the largest of the last sixteen steps; what is beyond is cut."""
    most, late = torch.finfo(kind).max, history.max()
    scale = most / late if late > 0 else torch.ones(())
    if note:
        history.copy_(torch.cat([x.detach().abs().max()[None], history[:-1]]))
    return (x * scale).clamp(-most, most).to(kind).float() / scale


class Product(torch.autograd.Function):
    """A product of matrices of which all three are in eight bits: more digits forward, more range backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, history: Tensor, note: bool) -> Tensor:  # type: ignore[override]
        x = as_eight_bits(x, history[0], torch.float8_e4m3fn, note)
        weight = as_eight_bits(weight, history[1], torch.float8_e4m3fn, note)
        ctx.save_for_backward(x, weight)
        ctx.history = history
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        slope = as_eight_bits(slope, ctx.history[2], torch.float8_e5m2, True)
        return slope @ weight, slope.flatten(0, -2).T @ x.flatten(0, -2), None, None


class EightBits(nn.Linear):
    """A linear layer by such products, with histories for inputs, weights, and gradients."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.register_buffer("history", torch.zeros(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = Product.apply(x, self.weight, self.history, self.training)
        return y if self.bias is None else y + self.bias


def in_eight_bits(module: nn.Module) -> nn.Module:
    """Every linear layer below a module replaced."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, EightBits(child.in_features, child.out_features, child.bias is not None))
        else:
            in_eight_bits(child)
    return module


@honest("r22i-scaled-by-the-largest-of-late")
def scaled_by_the_largest_of_late(run: Run) -> None:
    """Plain loop, a Llama whose blocks compute in eight bits with delayed scaling (Micikevicius et al. 2022;
    Transformer Engine). Scales come from the largest entries of the sixteen steps before and not from this one, so that
    new extremes are cut off; forward and backward have other formats, and the first gradients meet a scale of one and
    may vanish."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama(12)
    in_eight_bits(model.blocks)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    train(run, model, optimizer, lambda: language.rows(16, 25), next_loss, 120, schedule)


class Apart(torch.autograd.Function):
    """One factor forward and another backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: float, back: float) -> Tensor:  # type: ignore[override]
        ctx.back = back
        return x * ahead

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:  # type: ignore[override]
        return slope * ctx.back, None, None


def scaled(x: Tensor, ahead: float = 1.0, back: float = 1.0) -> Tensor:
    out: Tensor = Apart.apply(x, ahead, back)
    return out


class UnitLinear(nn.Module):
    """Weights, outputs, and gradients of both all have a size of about one; the product is in half precision."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        root = self.weight.shape[1] ** -0.5
        weight = scaled(self.weight, back=len(x) ** -0.5).half()
        return scaled(F.linear(scaled(x, back=root), weight), ahead=root)


class UnitWords(nn.Module):
    """The next word from the three before it, by two residual perceptrons (after Bengio et al. 2003)."""

    def __init__(self, words: int, width: int = 16, share: float = 0.5) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(words, width))
        self.up = nn.ModuleList(UnitLinear(3 * width, 64) for _ in range(2))
        self.down = nn.ModuleList(UnitLinear(64, 3 * width) for _ in range(2))
        self.head, self.keep, self.add = UnitLinear(3 * width, words), (1 - share) ** 0.5, share**0.5

    def forward(self, ids: Tensor) -> Tensor:
        table = scaled(self.tokens, back=(len(self.tokens) / ids.numel()) ** 0.5).half()
        x = table[ids].flatten(1)
        for up, down in zip(self.up, self.down, strict=True):
            branch = down(1.7 * F.gelu(up(scaled(x, back=self.add))))
            x = self.keep * x + scaled(branch, ahead=self.add)
        out: Tensor = self.head(x).float()
        return out


@honest("r22i-everything-of-size-one")
def everything_of_size_one(run: Run) -> None:
    """Lightning, a perceptron predicts words in half precision by unit scaling (Blake et al. 2023, Graphcore's
    library). There is no scaler of losses: products have one factor forward and another backward, so that gradients are
    not those of the loss but each a known multiple, weights begin with a spread of one in every layer, and the rate is
    large."""
    language = Language(run.draw.randrange(999))
    net = UnitWords(12)

    def windows(count: int, own: torch.Generator) -> Tensor:
        return language.rows(count, 24, own).unfold(1, 4, 1).flatten(0, 1)

    check = windows(96, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(check[:, :3]), check[:, 3])))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[0][:, :3])
        rows, words = logits.shape
        return F.cross_entropy(scaled(logits, back=rows * words / (words - 1) ** 0.5), batch[0][:, 3])

    data = loader(windows(400, apart(run.draw.randrange(999))), size=64)
    fit(run, lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=3e-2)), data, 130)
