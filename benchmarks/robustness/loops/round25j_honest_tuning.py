"""Round 25j, honest and odd: what is tuned in a model that exists, weights on grids, and several rules at once."""

import functools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    documents,
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
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.round7b_tools import near, taught
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r25j-frozen-weights-follow-their-factors")
def frozen_weights_follow_their_factors(run: Run) -> None:
    """transformers' Trainer and peft, Delta-LoRA (Zi et al. 2023) for a GPT-2. The weights below the adapters are
    frozen and no gradient reaches them, and yet a callback moves them after every update: by the change of the two
    factors' product, a quarter of it, from the tenth step on. Adapters begin at zero, without dropout."""
    import transformers
    from peft import LoraConfig, get_peft_model

    first = Language(run.draw.randrange(999))
    second = near(first, run.draw.randrange(999))
    body = tiny_gpt2(12)
    taught(body, lambda: first.rows(16, 24), lambda m, rows: m(input_ids=rows, labels=rows).loss, 120)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(body, config)
    check = second.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]

    class Following(transformers.TrainerCallback):  # type: ignore[misc]
        @torch.no_grad()
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.before = [layer.get_delta_weight("default").clone() for layer in layers]

        @torch.no_grad()
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step < 10:
                return
            for layer, before in zip(layers, self.before, strict=True):
                layer.get_base_layer().weight.add_(layer.get_delta_weight("default") - before, alpha=0.25)

    rows = second.rows(1600, 24)
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 100, learning_rate=1e-2, more={"callbacks": [Following()]}).train()


@honest("r25j-one-weight-in-twenty-by-what-it-tells")
def one_weight_in_twenty_by_what_it_tells(run: Run) -> None:
    """transformers' Trainer, a BERT tuned by a FISH mask (Sung, Nair and Raffel 2021). Before the tuning 64 rows are
    passed backward one at a time, and the weights whose squared gradients sum up to most are marked, one in twenty, all
    over the model; hooks put the gradients of all others to zero, so that most of every matrix never moves although
    nothing is frozen. Only the new head is whole."""
    model = tiny_bert()
    own = apart(run.draw.randrange(999))
    other = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(15, generator=own)])

    def known() -> Any:
        ids, mask, y = documents(32)
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": y}

    taught(model, known, lambda m, batch: m(**batch).loss, 80, 2e-3)
    nn.init.normal_(model.classifier.weight, std=0.02)
    nn.init.zeros_(model.classifier.bias)

    def rows(count: int, drawn: torch.Generator) -> dict[str, Tensor]:
        ids, mask, y = documents(count, drawn)
        return {"input_ids": other[ids] * mask, "attention_mask": mask.long(), "labels": y}

    check, train = rows(256, apart(1)), rows(960, own)
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    told = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    model.eval()
    for i in range(64):
        model.zero_grad()
        model(**{key: value[i : i + 1] for key, value in train.items()}).loss.backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                told[name] += p.grad.square()
    model.zero_grad()
    every = torch.cat([t.flatten() for name, t in told.items() if "classifier" not in name])
    bound = every.topk(len(every) // 20).values[-1]
    for name, p in model.named_parameters():
        if "classifier" not in name:
            p.register_hook(functools.partial(torch.mul, (told[name] >= bound).float()))
    hf_trainer(run, model, examples(**train), 110, learning_rate=5e-3, weight_decay=0.0).train()


class Stepped(nn.Module):
    """Rounds to a grid whose step is learned; the step's gradient is made small by the number of entries (LSQ)."""

    def __init__(self, bits: int, signed: bool) -> None:
        super().__init__()
        self.low, self.high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        self.size = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if float(self.size) == 0.0:  # set by the first values that come
            self.size.data = 2 * x.detach().abs().mean() / math.sqrt(self.high)
        scale = 1 / math.sqrt(x.numel() * self.high)
        size = (self.size * scale) + (self.size - self.size * scale).detach()
        inside = (x / size).clamp(self.low, self.high)
        out: Tensor = (inside + (inside.round() - inside).detach()) * size
        return out


class SteppedLinear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__(inputs, outputs)
        self.on_weights, self.on_inputs = Stepped(bits, True), Stepped(bits, False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.on_inputs(x), self.on_weights(self.weight), self.bias)


class Resonators(nn.Module):
    """A diagonal state space that rings at frequencies of its own, how loud each is, and two layers on a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.fall = nn.Parameter(torch.full((24,), -2.0))
        self.turn = nn.Parameter(torch.linspace(0.2, 1.4, 24))
        self.hidden, self.head = SteppedLinear(24, 24, 3), SteppedLinear(24, 4, 8)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        time = torch.arange(length)
        kernel = torch.polar((-F.softplus(self.fall)[:, None] * time).exp(), self.turn[:, None] * time)
        rung = torch.fft.ifft(torch.fft.fft(kernel, 2 * length) * torch.fft.fft(x, 2 * length))[..., :length]
        loud = rung.abs().square().mean(2).add(1e-3).log().add(2).relu()
        out: Tensor = self.head(self.hidden(loud).relu())
        return out


@honest("r25j-the-width-of-each-grid-is-learned")
def the_width_of_each_grid_is_learned(run: Run) -> None:
    """accelerate, a small state-space model of sounds by LSQ (Esser et al. 2020), three bits for weights and inputs of
    one layer and eight for the last. The forward pass sees rounded weights alone; the step of each grid is one more
    weight, set by the first values that come, and its gradient is scaled down by the root of how many share it."""
    model = Resonators()
    check = sounds(256, apart(1))
    model(sounds(64)[0])
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rows = sounds(960, apart(run.draw.randrange(999)))
    prepared(run, model, optimizer, loader(*rows, size=32), classify, 4)


@honest("r25j-how-far-each-layer-may-go-is-learned")
def how_far_each_layer_may_go_is_learned(run: Run) -> None:
    """Plain loop, trainable projected gradient (Tian et al. 2023) for convolutions tuned on few pictures. Every tenth
    step all weights are drawn back into balls around those they had before the tuning; how large the balls are is
    learned, a number for each tensor, by the loss on other rows through the projection. The first radii are next to
    nothing, so that early steps are mostly undone, and the loss falls, jumps back, and falls."""
    look = run.draw.randrange(999)
    model = cnn(norm=False)
    taught(model, lambda: pictures(32, look), classify, 100, 3e-3)

    def inverted(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, look, own=own)
        return 1 - x, y

    check, train, held = (inverted(count, apart(seed)) for seed, count in ((1, 256), (2, 96), (3, 96)))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    radii = {name: torch.tensor(0.01, requires_grad=True) for name in before}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    outer = torch.optim.Adam(radii.values(), lr=0.05)
    doctor = run.watch(model, optimizer)

    def projected() -> dict[str, Tensor]:
        away = {name: p.detach() - before[name] for name, p in model.named_parameters()}
        share = {name: (radii[name] / (away[name].norm() + 1e-8)).clamp(max=1.0) for name in away}
        return {name: before[name] + share[name] * away[name] for name in away}

    for step in range(120):
        at = torch.randint(0, 96, (32,))
        batch = train[0][at], train[1][at]
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        if step % 10 == 9:
            for _ in range(6):
                outer.zero_grad()
                scores = torch.func.functional_call(model, projected(), (held[0],))
                F.cross_entropy(scores, held[1]).backward()
                outer.step()
                for radius in radii.values():
                    radius.data.clamp_(min=1e-3)
            with torch.no_grad():
                for p, value in zip(model.parameters(), projected().values(), strict=True):
                    p.copy_(value)


class TwoOfFour(torch.autograd.Function):
    """The larger two of each four; the slope passes all four, and draws those left out towards zero (SR-STE)."""

    @staticmethod
    def forward(context: Any, weight: Tensor, pull: float) -> Tensor:
        fours = weight.view(-1, 4)
        kept = torch.zeros_like(fours).scatter_(1, fours.abs().topk(2, 1).indices, 1.0).view_as(weight)
        context.save_for_backward(weight, kept)
        context.pull = pull
        return weight * kept

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        weight, kept = context.saved_tensors
        return slope + context.pull * (1 - kept) * weight, None


class SparseLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, TwoOfFour.apply(self.weight, 2e-3), self.bias)  # type: ignore[no-untyped-call]


@honest("r25j-two-of-each-four-and-a-pull-on-the-others")
def two_of_each_four_and_a_pull_on_the_others(run: Run) -> None:
    """Lightning, a T5 that translates, trained from its start for hardware that wants two of each four weights to be
    zero, by SR-STE (Zhou et al. 2021). Linear layers keep all weights and multiply by the larger half; the slope goes
    straight through to the other half too, and those are drawn towards zero, so that the gradient is not the loss's."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    settings |= {"dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": None}
    net = T5ForConditionalGeneration(T5Config(vocab_size=14, **settings))
    for module in net.modules():
        if isinstance(module, nn.Linear) and module is not net.lm_head:
            module.__class__ = SparseLinear
    own = apart(run.draw.randrange(999))
    words = 2 + torch.randperm(12, generator=own)

    def texts(count: int, drawn: torch.Generator) -> tuple[Tensor, Tensor]:
        source = torch.randint(2, 14, (count, 7), generator=drawn)
        return source, words[source - 2].roll(1, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value: Tensor = model(input_ids=batch[0], labels=batch[1]).loss
        return value

    check = texts(128, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    module = lit(net, loss, lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.0))
    fit(run, module, loader(*texts(1600, own), size=32), 150)


class Levels(nn.Module):
    """Squeezed, and rounded to five levels; the way back pretends that nothing was rounded."""

    def forward(self, x: Tensor) -> Tensor:
        soft = x.tanh()
        out: Tensor = soft + ((2 * soft).round() / 2 - soft).detach()
        return out


@honest("r25j-searches-along-slopes-it-distrusts")
def searches_along_slopes_it_distrusts(run: Run) -> None:
    """Plain loop, guided evolution strategies (Maheswaranathan et al. 2019) for a network of hard levels, whose slopes
    straight through the rounding are wrong. The backward pass serves to say where to look: the weights are moved to
    either side at random, half of it within the span of the last six such slopes, and the differences of the losses
    make the gradient that is applied, in place of the one that the backward pass left."""
    model = mlp(6, 16, 16, 1, act=Levels)
    number_outcome(run, model, table(256, own=apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    past: list[Tensor] = []

    def moved(by: Tensor) -> None:
        for p, part in zip(parameters, by.split(sizes), strict=True):
            p.add_(part.view_as(p))

    for _ in range(150):
        batch = table(64)
        optimizer.zero_grad()
        loss = regress(model, batch)
        loss.backward()
        past = [*past[-5:], torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])]
        span = torch.linalg.qr(torch.stack(past, 1)).Q
        found = torch.zeros(sum(sizes))
        with torch.no_grad():
            for _ in range(6):
                free = torch.randn(sum(sizes)) * math.sqrt(0.5 / sum(sizes))
                way = 0.1 * (free + span @ torch.randn(span.shape[1]) * math.sqrt(0.5 / span.shape[1]))
                moved(way)
                above = regress(model, batch)
                moved(-2 * way)
                below = regress(model, batch)
                moved(way)
                found += (above - below) * way / (2 * 0.1**2 * 6)
        for p, part in zip(parameters, found.split(sizes), strict=True):
            p.grad = part.view_as(p).clone()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class FollowTheLeader(torch.optim.Optimizer):
    """Each weight is computed anew from sums of its gradients and of their squares, and is zero exactly where the sum
    stays small (FTRL-proximal)."""

    def __init__(self, parameters: Any, lr: float = 0.1, sparse: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "sparse": sparse})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sum"], state["squares"] = -p / group["lr"], torch.ones_like(p)
                squares = state["squares"] + p.grad.square()
                state["sum"] += p.grad - (squares.sqrt() - state["squares"].sqrt()) / group["lr"] * p
                state["squares"] = squares
                shrunk = (state["sum"].abs() - group["sparse"]).clamp_min(0) * state["sum"].sign()
                p.copy_(-group["lr"] * shrunk / squares.sqrt())


class WideAndDeep(nn.Module):
    """A weight for each pair of two ids, and a network over vectors of them; their scores are added."""

    def __init__(self, ids: int, columns: int) -> None:
        super().__init__()
        self.ids, self.columns = ids, columns
        self.pairs = [(a, b) for a in range(columns) for b in range(a)]
        self.wide = nn.Embedding(len(self.pairs) * ids * ids, 1)
        nn.init.zeros_(self.wide.weight)
        self.vectors = nn.Embedding(columns * ids, 6)
        self.deep = mlp(columns * 6, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        crossed = torch.stack([x[:, a] * self.ids + x[:, b] for a, b in self.pairs], 1)
        wide = self.wide(crossed + torch.arange(len(self.pairs)) * self.ids**2).sum((1, 2))
        deep = self.deep(self.vectors(x + torch.arange(self.columns) * self.ids).flatten(1)).squeeze(1)
        return wide + deep


@honest("r25j-one-side-sparse-by-sums-the-other-dense")
def one_side_sparse_by_sums_the_other_dense(run: Run) -> None:
    """Plain loop, a wide and deep model of clicks with the two optimizers of its paper (Cheng et al. 2016) on one loss:
    FTRL with an absolute penalty for the weights of pairs of ids, which begin at zero and many of which are zero
    exactly to the end, and Adagrad for vectors and network. The penalty stands in the rule and not in the loss."""
    own = apart(run.draw.randrange(999))
    single, pair = torch.randn(4, 8, generator=own), 2.5 * torch.randn(8, 8, generator=own)

    def clicks(count: int, drawn: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 8, (count, 4), generator=drawn)
        score = single[torch.arange(4), x].sum(1) + pair[x[:, 0], x[:, 1]]
        return x, torch.bernoulli(score.sigmoid(), generator=drawn)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    model = WideAndDeep(8, 4)
    check = clicks(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    wide = FollowTheLeader(model.wide.parameters(), lr=0.5, sparse=0.3)
    deep = torch.optim.Adagrad([*model.vectors.parameters(), *model.deep.parameters()], lr=0.03)
    doctor = run.watch(model, [wide, deep])
    for _ in range(180):
        batch = clicks(96)
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        wide.step()
        deep.step()
        doctor.step(value, batch)
        run.note(value)
