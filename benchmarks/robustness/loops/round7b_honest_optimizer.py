"""Round 7b, honest and odd: optimizers, schedules and clipping."""

import math
from collections import deque
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, SmallLlama, sounds
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn


@honest("r7-steady-then-cooled")
def steady_then_cooled(run: Run) -> None:
    """transformers' Trainer, a Llama. The rate is warmed up, held for most of the run, and falls to zero in the last fifth:
    the loss hardly moves for long, and falls with the rate."""
    language = Language(run.draw.randrange(999), first=4)
    model = llama(vocab_size=16, num_hidden_layers=1)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(480, 20)
    settings: dict[str, Any] = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 8, "learning_rate": 1e-2}
    settings |= {"lr_scheduler_kwargs": {"num_decay_steps": 20}}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 100, **settings).train()


@honest("r7-clipped-at-a-quantile")
def clipped_at_a_quantile(run: Run) -> None:
    """AutoClip: gradients of an LSTM are clipped to the tenth percentile of all norms so far, which is to say in nine steps
    of ten, and more and more."""
    language = Language(run.draw.randrange(999))
    model = Reader(12, core=nn.LSTM)
    text_outcome(run, model, language)
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    norms: list[float] = []
    for _ in range(140):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
        limit = sorted(norms)[len(norms) // 10]
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r7-rates-by-width")
def rates_by_width(run: Run) -> None:
    """Maximal update parametrisation: the readout begins at zero and is divided by the width's multiple, hidden matrices
    have an eighth of the rate of embeddings and vectors, and a deviation by their fan."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, width=64)
    nn.init.zeros_(model.head.weight)
    hidden, rest = [], []
    for name, p in model.named_parameters():
        if p.ndim == 2 and name.startswith("blocks"):
            nn.init.normal_(p, std=1 / math.sqrt(p.shape[1]))
            hidden.append(p)
        else:
            rest.append(p)
    text_outcome(run, model, language)
    optimizer = torch.optim.AdamW([{"params": hidden, "lr": 1.5e-3}, {"params": rest}], lr=1.2e-2, weight_decay=0.0)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        logits = m(rows[:, :-1]) / 2
        return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    train(run, model, optimizer, lambda: language.rows(12, 24), loss, 90)


class Curved(torch.optim.Optimizer):
    """AdaHessian: the second moment is of the Hessian's diagonal, from one product with random signs."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            signs = [torch.randint(0, 2, p.shape) * 2.0 - 1 for p in held]
            with torch.enable_grad():
                products = torch.autograd.grad([p.grad for p in held], held, signs)
            for p, z, product in zip(held, signs, products, strict=True):
                state = self.state[p]
                if not state:
                    state |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["t"] += 1
                state["m"].lerp_(p.grad.detach(), 0.1)
                state["v"].lerp_((z * product).square(), 0.01)
                m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.99 ** state["t"])
                p.sub_(group["lr"] * m / (v.sqrt() + 0.02))
                p.grad = None


@honest("r7-curvature-by-a-second-pass")
def curvature_by_a_second_pass(run: Run) -> None:
    """AdaHessian on a table: backward() keeps the graph, the step differentiates the gradients once more against random
    signs and divides by what comes out; it also clears the gradients."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 32, 1, act=nn.Tanh)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = Curved(model.parameters(), 0.03)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        batch = table(48, seed)
        loss = regress(model, batch)
        loss.backward(create_graph=True)
        optimizer.step()
        doctor.step(loss.detach(), batch)
        run.note(loss)


@honest("r7-gradients-three-steps-old")
def gradients_three_steps_old(run: Run) -> None:
    """A pipeline in one process: each gradient is of the weights of three steps before, and applied to those of now, with
    plain SGD. The old weights are put in for the pass and the new ones back."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    doctor = run.watch(model, optimizer)
    past: deque[list[Tensor]] = deque(maxlen=4)

    def put(tensors: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(model.parameters(), tensors, strict=True):
                p.copy_(value)

    for _ in range(130):
        now = [p.detach().clone() for p in model.parameters()]
        past.append(now)
        put(past[0])
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        put(now)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r7-one-in-twenty-is-sent")
def one_in_twenty_is_sent(run: Run) -> None:
    """Compressed gradients with error feedback: of each tensor only the largest twentieth of the entries is applied, the
    rest is kept and added to the next gradient. Most weights stand still in most steps."""
    seed = run.draw.randrange(999)
    model = cnn(norm=False)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    owed = {p: torch.zeros_like(p) for p in model.parameters()}
    data = endless(loader(*pictures(320, seed)))
    for _ in range(160):
        batch = next(data)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        for p, rest in owed.items():
            assert p.grad is not None
            whole = p.grad + rest
            limit = whole.abs().flatten().topk(max(1, p.numel() // 20)).values[-1]
            p.grad = whole * (whole.abs() >= limit)
            owed[p] = whole - p.grad
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r7-rate-from-the-distance")
def rate_from_the_distance(run: Run) -> None:
    """Distance over gradients: no rate is chosen. The first step is a ten-thousandth, and the rate is how far the weights
    have ever been from their start, over the root of all squared gradients: it grows a hundredfold by itself."""
    model = Listener()
    check = sounds(256, apart(1), 0.5)
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    start = [p.detach().clone() for p in model.parameters()]
    far, squares = 1e-3, 0.0
    for _ in range(200):
        batch = sounds(48, noise=0.5)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        squares += sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        moved = sum(float((p.detach() - s).square().sum()) for p, s in zip(model.parameters(), start, strict=True))
        far = max(far, math.sqrt(moved))
        optimizer.param_groups[0]["lr"] = far / math.sqrt(squares + 1e-8)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r7-from-adam-to-plain-steps")
def from_adam_to_plain_steps(run: Run) -> None:
    """A recurrent reader learns by Adam at 0.005 for sixty steps, and goes on by SGD at 0.3 with momentum: another
    optimizer on the same model, told to another doctor, a rate that jumps sixtyfold."""
    language = Language(run.draw.randrange(999))
    model = Reader(12)
    text_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(12, 24), next_loss, 60)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    train(run, model, optimizer, lambda: language.rows(12, 24), next_loss, 80, clip=1.0)


@honest("r7-slow-gradients-amplified")
def slow_gradients_amplified(run: Run) -> None:
    """Grokfast: to each gradient three times its running average is added before the step, so that what is applied is
    several times the gradient of the loss and lags behind it. Products modulo 11 are learned from half of the pairs."""
    model = SmallLlama(12, layers=1)
    pairs = torch.cartesian_prod(torch.arange(11), torch.arange(11))
    pairs = pairs[torch.randperm(121, generator=apart(1))]
    rows = torch.cat([pairs, torch.full((121, 1), 11), (pairs[:, :1] * pairs[:, 1:]) % 11], 1)

    def loss_of(rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(rows[:, :3])[:, -1], rows[:, 3])

    outcome(run, lambda: judged(model, lambda: loss_of(rows[:80])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.5)
    doctor = run.watch(model, optimizer)
    slow: dict[Any, Tensor] = {}
    for _ in range(160):
        batch = rows[torch.randint(0, 80, (40,))]
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                slow[p] = p.grad.clone() if p not in slow else slow[p].lerp(p.grad, 0.05)
                p.grad.add_(slow[p], alpha=3.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
