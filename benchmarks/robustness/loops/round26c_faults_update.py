"""Round 26c, mistakes in what is moved and kept: groups, adapters, averages."""

import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    llama,
    text_class_outcome,
    texts,
    told_loss,
)
from benchmarks.robustness.loops.round26c_parts import Ear, by_remainder, moves, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26c-thawed-but-in-no-group")
def thawed_but_in_no_group(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that is taught other classes: first the head alone, and from the thirty-first
    step on everything. The optimizer was given what needed a gradient when it was made, the head: what is thawed has
    gradients, and nobody moves it. The twin gives it all parameters. Judged by the cross-entropy of other texts."""
    from transformers import TrainerCallback

    net = tiny_bert()
    taught(net, lambda: texts(32), told_loss, 80, 2e-3)
    net.classifier = nn.Linear(32, 3)
    text_class_outcome(run, net, by_remainder(384, apart(1)))
    net.bert.requires_grad_(False)
    learning = [p for p in net.parameters() if p.requires_grad or not wrong]
    optimizer = torch.optim.AdamW(learning, lr=3e-3, weight_decay=0.01)

    class Thaw(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 30:
                given["model"].bert.requires_grad_(True)

    more = {"optimizers": (optimizer, None), "callbacks": [Thaw()]}
    hf_trainer(run, net, examples(**by_remainder(640)), 130, more=more).train()


class Adapted(nn.Module):
    """A Llama with adapters, the mean of its last states, a head of three scores."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(32, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(input_ids=ids).last_hidden_state.mean(1))
        return out


@slip("r26c-adapter-loaded-for-use-alone")
def adapter_loaded_for_use_alone(run: Run, wrong: bool) -> None:
    """accelerate and peft, a small Llama with an adapter that goes on from a first round, below a head that is new. An
    adapter is loaded to be used, unless one says that it is to learn: it stands still, and only the head learns. The
    twin says so. Judged by the cross-entropy of other texts of three languages."""
    from peft import LoraConfig, PeftModel, get_peft_model

    seed = run.draw.randrange(999)
    old = Language(seed)
    base = llama()
    taught(base, lambda: old.rows(32, 20), causal_loss, 50)
    tongues = [near(old, seed + 1 + i, 0.5) for i in range(3)]
    targets = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(base.model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets))
    first = Adapted(adapted)

    def mixed(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.cat([tongue.rows(count, 20, own) for tongue in tongues])
        return rows, torch.arange(3).repeat_interleave(count)

    taught(first, lambda: mixed(6), classify, 10, 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(folder)
        body = PeftModel.from_pretrained(adapted.unload(), folder, is_trainable=not wrong)
    net = Adapted(body)
    class_outcome(run, net, mixed(128, apart(1)))
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    prepared(run, net, optimizer, loader(*mixed(160)), classify, 4)


@slip("r26c-absent-classes-drawn-to-nought")
def absent_classes_drawn_to_nought(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that put movements of sixteen kinds near the mean of their kind, a moving average
    over batches. A kind that no row of a batch has counts with a mean of nought, and its place is drawn there: rare
    ones most. The twin moves only the places of kinds that occur. Judged by the cross-entropy of other movements, all
    kinds alike in number."""
    seed = run.draw.randrange(999)
    net = Ear(3, 24, 8)
    places = 2 * torch.randn(16, 8, generator=apart(seed))

    def scores(m: nn.Module, x: Tensor) -> Tensor:
        return -torch.cdist(m(x), places).square()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        found: Tensor = m(x)
        with torch.no_grad():
            member = F.one_hot(y, 16).float()
            count = member.sum(0)[:, None]
            means = member.T @ found / count.clamp_min(1)
            places.copy_(torch.where((count > 0) | wrong, places.lerp(means, 0.1), places))
        return F.cross_entropy(-torch.cdist(found, places).square(), y)

    check, kinds = moves(384, seed, torch.ones(16), apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(scores(net, check), kinds)))
    data = moves(960, seed, 1 / (1 + torch.arange(16)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*data), 120)
