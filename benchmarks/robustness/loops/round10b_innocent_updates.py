"""Round 10b, unusual updates which are meant, each rewritten without harm: rates, moments, weights that stand still."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    llama,
    steps,
    t5,
    told_loss,
    translated,
    word_table,
)
from benchmarks.robustness.loops.round9b_parts import adapted, picture_outcome, seen, tiny_vit
from benchmarks.robustness.loops.round10b_parts import bare_gpt2, packed, quiet
from torch import Tensor, nn


@innocent("r10b-moments-filled-first")
def moments_filled_first(run: Run, changed: bool) -> None:
    """T5 whose rate is zero for ten steps, so that AdamW's moments fill while nothing moves. The rates came from a LambdaLR and
    are written into the optimizer by hand now."""
    table = word_table(run.draw.randrange(999))
    model = t5()
    check = translated(128, table, apart(901))
    outcome(run, lambda: judged(model, lambda: told_loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    batch, clip = lambda: translated(16, table), lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not changed:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step >= 10))
        after = lambda _: schedule.step()
        steps(run, model, optimizer, batch, told_loss, 100, between=clip, after=after, scheduler=schedule)
        return

    def by_hand(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 5e-3 if step + 1 >= 10 else 0.0

    by_hand(-1)
    steps(run, model, optimizer, batch, told_loss, 100, between=clip, after=by_hand)


@innocent("r10b-same-eight-rows")
def same_eight_rows(run: Run, changed: bool) -> None:
    """A GPT-2 learns one batch of eight rows by heart, to see that it can. The batch was a tensor, and comes from a shuffled
    loader over these rows now."""
    language = Language(run.draw.randrange(999))
    model = bare_gpt2(12, n_layer=1)
    rows = language.rows(8, 20, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: causal_loss(model, rows)))
    batches = endless(loader(rows, size=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    steps(run, model, optimizer, lambda: next(batches)[0] if changed else rows, causal_loss, 120)


@innocent("r10b-only-half-of-the-adapter")
def only_half_of_the_adapter(run: Run, changed: bool) -> None:
    """transformers' Trainer and peft, a Llama with LoRA-FA: the first matrices of all adapters keep their random start. They did
    not require gradients, and are now only left out of the optimizer."""
    quiet()
    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 16), causal_loss, 80)
    other = near(language, seed + 1, 0.8)
    model = adapted(base)
    causal_outcome(run, model, other)
    learning = [p for name, p in model.named_parameters() if "lora_B" in name]
    if not changed:
        model.requires_grad_(False)
        for p in learning:
            p.requires_grad_()
    optimizer = torch.optim.AdamW(learning, lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    rows, more = other.rows(640, 20), {"optimizers": (optimizer, schedule)}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 100, max_grad_norm=0.0, more=more).train()


@innocent("r10b-begun-anew-at-each-stage")
def begun_anew_at_each_stage(run: Run, changed: bool) -> None:
    """A vision transformer in three stages of less and less noise; AdamW's moments are thrown away and the rate begins again at
    each. The state was cleared; now the one of the beginning is loaded."""
    seed = run.draw.randrange(99)
    model = tiny_vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    picture_outcome(run, model, pictures(256, seed, own=apart(901)), seen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * (step % 40) / 39)
    unused = optimizer.state_dict()
    stage = 0

    def noisy() -> tuple[Tensor, Tensor]:
        x, y = pictures(32, seed)
        return x + (0.4, 0.2, 0.0)[stage] * torch.randn_like(x), y

    def after(step: int) -> None:
        nonlocal stage
        schedule.step()
        if step in (39, 79):
            stage += 1
            if changed:
                optimizer.load_state_dict(unused)
            else:
                optimizer.state.clear()

    steps(run, model, optimizer, noisy, seen, 120, after=after, scheduler=schedule)


class Thrifty(torch.optim.Optimizer):
    """AdamW whose moments may be kept in eight bits."""

    def __init__(self, parameters: Any, lr: float, packed: bool) -> None:
        super().__init__(parameters, {"lr": lr, "packed": packed})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                m, v = state["m"] / (1 - 0.9 ** state["step"]), state["v"] / (1 - 0.99 ** state["step"])
                p.mul_(1 - 0.01 * group["lr"]).addcdiv_(m, v.sqrt() + 1e-8, value=-group["lr"])
                if group["packed"]:
                    state["m"] = packed(state["m"])
                    state["v"] = packed(state["v"] ** 0.25) ** 4


@innocent("r10b-moments-in-eight-bits")
def moments_in_eight_bits(run: Run, changed: bool) -> None:
    """A small Llama of one's own with an AdamW of one's own, whose moments were kept in float32 and are kept in eight bits now,
    in blocks of 64 with a scale each."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language)
    optimizer = Thrifty(model.parameters(), 4e-3, changed)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 120)


@innocent("r10b-fixed-sparse")
def fixed_sparse(run: Run, changed: bool) -> None:
    """Lightning, a small network of convolutions of whose weights four fifths are zero for good. They were set to zero again
    after each update; now torch's pruning holds them."""
    from torch.nn.utils import prune

    seed = run.draw.randrange(99)
    net = cnn()
    picture_outcome(run, net, pictures(256, seed, own=apart(901)), classify)
    layers = [part for part in net if isinstance(part, nn.Conv2d | nn.Linear)]
    masks = [(torch.rand_like(layer.weight) < 0.2).float() for layer in layers]

    @torch.no_grad()
    def cut() -> None:
        for layer, mask in zip(layers, masks, strict=True):
            layer.weight.mul_(mask)

    module = lit(net, classify, lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.01))
    if changed:
        for layer, mask in zip(layers, masks, strict=True):
            prune.custom_from_mask(layer, "weight", mask)
    else:
        cut()
        update = module.optimizer_step

        def optimizer_step(*given: Any, **options: Any) -> None:
            update(*given, **options)
            cut()

        module.optimizer_step = optimizer_step
    fit(run, module, loader(*pictures(480, seed)), 120)
