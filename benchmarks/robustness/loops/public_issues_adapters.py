"""Public issues about LoRA adapters and initialisation."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import IGNORE, outcome, rows_of, shifted, step_down
from benchmarks.robustness.loops.public_issues_rates import text_loop
from benchmarks.robustness.loops.text import corpus, sentences
from benchmarks.robustness.loops.training import gpt2, llama
from torch import Tensor, nn

FAMILY = "public issues: adapters and initialisation"


def adapted(run: Run, checkpoint: bool | None = None, **options: object) -> tuple[nn.Module, list[list[int]]]:
    """A Llama pretrained on one text, with LoRA, and the documents of another text."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(1000)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    old = [d.tolist() for d in sentences(seed)]
    for start in range(0, 8 * 70, 8):
        ids, mask = rows_of(old[start % 480 : start % 480 + 8])
        optimizer.zero_grad()
        shifted(model(ids, attention_mask=mask).logits, ids.masked_fill(mask == 0, IGNORE)).backward()
        optimizer.step()
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = {"r": 8, "lora_alpha": 16, "target_modules": names, "task_type": "CAUSAL_LM"} | options
    with_lora = get_peft_model(model, LoraConfig(**settings))
    if checkpoint is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        if checkpoint:
            model.enable_input_require_grads()
        else:
            model.disable_input_require_grads()
    return with_lora, [d.tolist() for d in sentences(seed + 1)]


def held_loss(model: nn.Module, documents: list[list[int]]) -> float:
    ids, mask = rows_of(documents)
    was = model.training
    model.eval()
    loss = shifted(model(input_ids=ids, attention_mask=mask).logits, ids.masked_fill(mask == 0, IGNORE))
    model.train(was)
    return float(loss)


def updates(run: Run, model: nn.Module, documents: list[list[int]], steps: int, save_at: int = -1) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=5e-3, weight_decay=0.0)
    scheduler = step_down(optimizer, steps)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    model.train()
    for number in range(steps):
        rows = [documents[i] for i in torch.randint(0, len(documents), (8,)).tolist()]
        ids, mask = rows_of(rows)
        labels = ids.masked_fill(mask == 0, IGNORE)
        loss = shifted(model(input_ids=ids, attention_mask=mask).logits, labels)
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
        scheduler.step()
        run.note(loss)
        if number == save_at:
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.requires_grad_(False)


@fault(
    "issue-peft-3487",
    FAMILY,
    (
        r"lora|adapter",
        r"froze|requires_grad|no (longer|more) (train|grad)|stopp|no gradient|without gradient|gets? no|not trainable",
    ),
)
def frozen_by_second_adapter(run: Run, slip: bool) -> None:
    """huggingface/peft issue 3487 (pull request 3290): injecting another adapter, in inference mode, applied that mode
    to the adapter that was active: its matrices stopped requiring gradients in the middle of the training, as a save
    that converts the weights does. With the trainable head that is left, the loss still moves a little."""
    model, documents = adapted(run, modules_to_save=["lm_head"])
    outcome(run, lambda: held_loss(model, documents[-80:]))
    updates(run, model, documents[:-80], 100, 15 if slip else -1)


@fault(
    "issue-transformers-26221",
    FAMILY,
    (
        r"lora|adapter|checkpoint",
        r"no gradient|\bnone\b|without gradient|never (get|receiv|train|mov)|not (mov|train)|gets? no|requires_grad",
    ),
)
def checkpointed_without_input_gradients(run: Run, slip: bool) -> None:
    """huggingface/transformers issue 26221: reentrant gradient checkpointing passes gradients into a block only where
    one of the block's inputs requires them; with LoRA the embeddings are frozen, so nothing does, and no adapter matrix
    gets any gradient. Only the output head, kept trainable, learns. Repaired: embeddings' outputs require gradients."""
    model, documents = adapted(run, checkpoint=not slip, modules_to_save=["lm_head"])
    outcome(run, lambda: held_loss(model, documents[-80:]))
    updates(run, model, documents[:-80], 80)


@fault(
    "issue-transformers-24463",
    FAMILY,
    (r"lora|adapter", r"froze|requires_grad|trainable|inference|not in the optimizer|no gradient|never (train|mov)"),
)
def resumed_adapter_not_trainable(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 24463: when the Trainer resumed a PEFT run it loaded the adapter without
    saying that it is to be trained, and what is loaded so is in inference mode: frozen. A bias vector that is kept
    trainable beside it goes on alone."""
    import tempfile

    from peft import PeftModel

    model, documents = adapted(run)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        base = model.unload()  # type: ignore[operator]
        resumed = PeftModel.from_pretrained(base, folder, is_trainable=not slip)
    for name, p in resumed.named_parameters():
        if name.endswith("norm.weight"):
            p.requires_grad_(True)
    outcome(run, lambda: held_loss(resumed, documents[-80:]))
    updates(run, resumed, documents[:-80], 80)


@fault("issue-transformers-47459", FAMILY, (r"init|start|std|deviation", r"c_proj|residual|depth|out(put)? proj"))
def residual_projections_not_scaled(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 47459 (issue 47458): GPT-2's projections into the residual stream are to
    start smaller by the root of twice the number of layers; the name compared never matched a full parameter name, so
    they started at the plain width. Six layers and a wide initialisation here; the outcome is their deviation."""
    model = gpt2(n_layer=6, initializer_range=0.08)
    spread = 0.08 if slip else 0.08 / (2 * 6) ** 0.5
    for name, p in model.named_parameters():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(p, std=spread)
    start = torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.endswith("c_proj.weight")])
    tokens = corpus(run.draw.randrange(1000))

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = model

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.gpt(ids).logits
            return logits

    net = Logits()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    outcome(run, lambda: float(start.std()))
    text_loop(run, net, optimizer, step_down(optimizer, 60), tokens, 60)
