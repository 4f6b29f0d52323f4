"""Public issues about learning rates and their schedules."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import Decoder, outcome
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "public issues: rates and schedules"


def held_out(model: nn.Module, tokens: Tensor, length: int = 32) -> float:
    block = tokens[: len(tokens) // (length + 1) * (length + 1)].view(-1, length + 1)
    was = model.training
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(block[:, :-1]).flatten(0, 1), block[:, 1:].flatten())
    model.train(was)
    return float(loss)


def text_loop(run: Run, model: nn.Module, optimizer: Any, scheduler: Any, tokens: Tensor, steps: int) -> None:
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(steps):
        x, y = crops(tokens)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        scheduler.step()
        run.note(loss)


@fault(
    "issue-nanochat-68",
    FAMILY,
    (r"learning rate|\brate\b|\blr\b|schedul", r"\brises?\b|rising|grow|increas|ramp|backward|revers|highest at|decay"),
)
def midtraining_rate_backwards(run: Run, slip: bool) -> None:
    """karpathy/nanochat issue 68: the multiplier of the learning rate in mid-training was the progress of the run
    itself instead of one minus it, so the rate climbed from zero to its full height at the end where it should have
    fallen to zero. Mid-training of a pretrained model on a new mixture."""
    seed = run.draw.randrange(1000)
    old, new = corpus(seed), corpus(seed + 1)
    model = Decoder(VOCABULARY, width=32)
    first = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        x, y = crops(old)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        first.zero_grad()
        loss.backward()
        first.step()
    steps = 140
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.2e-2, betas=(0.8, 0.95), weight_decay=0.0)

    def multiplier(step: int) -> float:
        progress = min(1.0, step / steps)
        return progress if slip else 1 - progress

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, multiplier)
    outcome(run, lambda: held_out(model, new[-6000:]))
    text_loop(run, model, optimizer, scheduler, new[:-6000], steps)


class Prepared:
    """A scheduler as accelerate wraps it: one step for every process, as for a single process's schedule."""

    def __init__(self, scheduler: Any, processes: int) -> None:
        self.scheduler, self.processes = scheduler, processes

    def step(self) -> None:
        for _ in range(self.processes):
            self.scheduler.step()


@fault(
    "issue-transformers-24088",
    FAMILY,
    (r"learning rate|\brate\b|\blr\b|schedul", r"fast|early|zero|per (step|update)|too soon|times|\bends\b|runs? out"),
)
def scheduler_steps_per_process(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 24088 (issue 23986): the Trainer gave its learning-rate scheduler to
    accelerate's prepare, which steps it once per process, though its number of steps was already that of the whole
    group's updates: the rate ran down as many times too fast as there were processes. Four processes here."""
    tokens = corpus(run.draw.randrange(1000))
    model = Decoder(VOCABULARY)
    steps = 160
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    linear = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 10) * max(0.0, 1 - max(0, s - 10) / (steps - 10))
    )
    outcome(run, lambda: held_out(model, tokens[-6000:]))
    text_loop(run, model, optimizer, Prepared(linear, 4 if slip else 1), tokens[:-6000], steps)


@fault(
    "issue-pytorch-72856",
    FAMILY,
    (
        r"learning rate|\brate\b|\blr\b|schedul",
        r"first|initial|second|phase|tenth|ten times|0\.1\b|milestone|jump|sequential",
    ),
)
def first_phase_with_last_rate(run: Run, slip: bool) -> None:
    """pytorch/pytorch pull request 72856 (issue 72874): every scheduler writes its rate into the optimizer when it is
    built, and SequentialLR did not undo that, so that it began with what the last-built one had left instead of the
    first one's rate. Here a phase at the full rate and then one at a tenth: the first phase ran at a tenth too."""
    tokens = corpus(run.draw.randrange(1000))
    model = Decoder(VOCABULARY)
    steps, change = 130, 90
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=change)
    second = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=steps)
    left = optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[change])
    if slip:
        optimizer.param_groups[0]["lr"] = left  # what SequentialLR's own constructor sets right since
    outcome(run, lambda: held_out(model, tokens[-6000:]))
    text_loop(run, model, optimizer, scheduler, tokens[:-6000], steps)


@fault(
    "issue-litgpt-132",
    FAMILY,
    (r"warm-?up|learning rate|\brate\b|\blr\b", r"warm|never|micro|still|reach|rising|grow|climb"),
)
def warmup_in_micro_batches(run: Run, slip: bool) -> None:
    """Lightning-AI/litgpt pull request 132: the warmup's length was written in micro-batches but compared with the
    count of optimizer steps, so with gradient accumulation it lasted as many times too long, and a short finetuning
    ended while it was still warming up. Accelerate's accumulation of eight micro-batches."""
    from accelerate import Accelerator

    tokens = corpus(run.draw.randrange(1000))
    pieces, updates, warmup_iters = 8, 50, 80
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=pieces)
    bare = Decoder(VOCABULARY)
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=4e-3))
    doctor = run.watch(bare, optimizer.optimizer)
    outcome(run, lambda: held_out(bare, tokens[-6000:]))
    steps_done, waiting, total = 0, [], 0.0
    warmup = warmup_iters if slip else warmup_iters // pieces
    for _ in range(pieces * updates):
        if steps_done <= warmup:
            for group in optimizer.param_groups:
                group["lr"] = 4e-3 * max(1, steps_done) / warmup
        x, y = crops(tokens[:-6000], 2)
        waiting.append((x, y))
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            total += float(loss.detach()) / pieces
            accelerator.backward(loss)
            optimizer.step()
            if accelerator.sync_gradients:
                steps_done += 1
                doctor.step(total, waiting)
                run.note(total)
                waiting, total = [], 0.0
            optimizer.zero_grad()


class Debiased(torch.optim.Optimizer):
    """Adam with its moments' corrections for their start at zero."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float], twice: bool) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas})
        self.twice = twice

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state["step"] += 1
                first, second = (1 - beta ** state["step"] for beta in group["betas"])
                if self.twice:
                    first, second = 1 - first, 1 - second
                state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0])
                state["exp_avg_sq"].lerp_(p.grad * p.grad, 1 - group["betas"][1])
                scale = (state["exp_avg_sq"] / second).sqrt() + 1e-8
                p.add_(state["exp_avg"] / first / scale, alpha=-group["lr"])


@fault(
    "issue-pytorch-optimizer-308",
    FAMILY,
    (
        r"bias|correct|moment|optimi[sz]er|update|step|effective|adam",
        r"grow|explo|diverg|increas|too (large|big|high)|exponential|blow|unstable|jump|rising",
    ),
)
def bias_correction_inverted(run: Run, slip: bool) -> None:
    """kozistr/pytorch_optimizer pull request 308 (issue 305): an optimizer's bias corrections were taken from one once
    more, after the helper that computes them had done so, so the moments were divided by a power of beta that goes to
    nothing: updates grow exponentially although the rate and the gradients do not, and the run blows up. There it was
    AdamG; here plain Adam, with the usual betas, that is corrected in the same way."""
    tokens = corpus(run.draw.randrange(1000))
    model = Decoder(VOCABULARY)
    steps = 110
    optimizer = Debiased(model.parameters(), 3e-3, (0.9, 0.999), slip)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 10) * max(0.05, 1 - s / steps)
    )
    outcome(run, lambda: held_out(model, tokens[-6000:]))
    text_loop(run, model, optimizer, scheduler, tokens[:-6000], steps)
