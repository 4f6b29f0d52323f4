"""Round 9b, faulty changes of the optimizer, its groups and its schedule."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    loader,
    next_loss,
    pictures,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    llama,
    reseeded,
    steps,
    t5,
    text_class_outcome,
    told_loss,
    translated,
    word_table,
)
from benchmarks.robustness.loops.round9b_parts import picture_outcome, seen, slip, tiny_vit
from torch import Tensor


@slip("r9b-rate-times-itself")
def rate_times_itself(run: Run, changed: bool) -> None:
    """A Llama, AdamW, a cosine from 4e-3 to a tenth, set by hand. The base rate was taken out of a global and the function
    now multiplies the rate that it finds in the group, which is the last step's."""
    language = Language(run.draw.randrange(999))
    model = llama()
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def set_rate(step: int) -> None:
        for group in optimizer.param_groups:
            base = group["lr"] if changed else 4e-3
            group["lr"] = base * (0.55 + 0.45 * math.cos(math.pi * step / 120))

    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 120, after=set_rate)


@slip("r9b-matrices-to-neither")
def matrices_to_neither(run: Run, changed: bool) -> None:
    """A small Llama of one's own; Muon has the matrices of the blocks, AdamW all the rest. The split was rewritten by the
    number of dimensions: the embedding and the head, which are matrices, have no optimizer. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = SmallLlama()
    text_outcome(run, model, language)
    named = list(model.named_parameters())
    inner = [p for name, p in named if p.dim() == 2 and not name.startswith(("tokens", "head"))]
    if changed:
        outer = [p for _, p in named if p.dim() < 2]
    else:
        outer = [p for name, p in named if p.dim() < 2 or name.startswith(("tokens", "head"))]
    optimizers = [torch.optim.Muon(inner, lr=0.01, weight_decay=0.0), torch.optim.AdamW(outer, lr=3e-3)]
    doctor = run.watch(model, optimizers)
    for _ in range(100):
        rows = language.rows(16, 20)
        model.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@slip("r9b-adafactor-scales-by-weights")
def adafactor_scales_by_weights(run: Run, changed: bool) -> None:
    """T5 with transformers' Adafactor at a constant rate. Its arguments were moved to a dictionary, and scale_parameter=False
    was lost: the default multiplies each update by the size of the weights."""
    from transformers.optimization import Adafactor

    model, table = t5(), word_table(run.draw.randrange(999))
    text_class_outcome(run, model, translated(96, table, apart(1)))
    settings: dict[str, Any] = {"lr": 5e-3, "relative_step": False, "warmup_init": False}
    if not changed:
        settings["scale_parameter"] = False
    steps(run, model, Adafactor(model.parameters(), **settings), lambda: translated(16, table), told_loss, 120)


@slip("r9b-thawed-at-the-heads-rate")
def thawed_at_the_heads_rate(run: Run, changed: bool) -> None:
    """Lightning, a vision transformer with a new head on 40 pictures: thirty steps for the head alone at 3e-2, then the body
    too at 1e-4. The group for the body lost its rate and has the optimizer's default, the head's. Another seed."""
    import lightning

    seed = run.draw.randrange(99)
    net = tiny_vit()
    taught(net, lambda: pictures(32, seed), seen, 120, 3e-3)
    reseeded(run, changed)
    turn = torch.tensor([1, 2, 3, 0])
    (x, y), (x2, y2) = pictures(40, seed, own=apart(seed)), pictures(256, seed, own=apart(1))
    picture_outcome(run, net, (x2, turn[y2]), seen)
    net.vit.requires_grad_(False)
    net.classifier.reset_parameters()

    class Tuned(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return seen(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.classifier.parameters(), lr=3e-2)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == 30:
                self.net.vit.requires_grad_(True)
                group: dict[str, Any] = {"params": list(self.net.vit.parameters())}
                self.trainer.optimizers[0].add_param_group(group if changed else group | {"lr": 1e-4})

    fit(run, Tuned(), loader(x, turn[y], size=10), 90)


@slip("r9b-schedule-stepped-by-both")
def schedule_stepped_by_both(run: Run, changed: bool) -> None:
    """GPT-2 in transformers' Trainer with a rate that falls to zero. A callback from the time of the plain loop came back in
    a merge, and steps the schedule after each step, as the Trainer does: the rate is zero half way."""
    from transformers import TrainerCallback

    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    causal_outcome(run, model, language)

    class Scheduling(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            given["lr_scheduler"].step()

    rows = language.rows(640, 20)
    trainer = hf_trainer(run, model, examples(input_ids=rows, labels=rows), 160, learning_rate=3e-3)
    if changed:
        trainer.add_callback(Scheduling())
    trainer.train()
