"""Public issues re-enacted with transformers' Trainer."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import IGNORE, Chats, outcome, rows_of, shifted
from benchmarks.robustness.loops.text import BOS, EOS, PAD, VOCABULARY, sentences
from benchmarks.robustness.loops.training import gpt2, llama
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

FAMILY = "public issues: transformers' Trainer"


class Catching(Trainer):  # type: ignore[misc]
    """Keeps what each micro-batch was and what its loss came to."""

    caught: list[tuple[float, dict[str, Tensor]]]

    def training_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Tensor:
        batch = dict(inputs)
        loss: Tensor = super().training_step(model, inputs, *rest, **more)
        self.caught.append((float(loss), batch))
        return loss


class Telling(TrainerCallback):  # type: ignore[misc]
    """The doctor's place in a Trainer: told after each update, before the gradients are cleared."""

    def __init__(self, run: Run, trainer: Catching) -> None:
        self.run, self.trainer = run, trainer
        trainer.caught = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])
        scheduler = getattr(given["lr_scheduler"], "scheduler", given["lr_scheduler"])
        self.doctor = self.run.watch(self.trainer.model, optimizer, scheduler=scheduler)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        loss = sum(loss for loss, _ in self.trainer.caught)
        batches = [batch for _, batch in self.trainer.caught]
        self.doctor.step(loss, batches if len(batches) > 1 else batches[0])
        self.run.note(loss)
        self.trainer.caught = []


def train(
    run: Run,
    model: nn.Module,
    data: list[Any],
    collate: Callable[[list[Any]], dict[str, Tensor]],
    kind: type[Catching] = Catching,
    **options: Any,
) -> Catching:
    settings: dict[str, Any] = {"per_device_train_batch_size": 8, "max_steps": 120, "learning_rate": 3e-3}
    settings |= {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "seed": 7}
    settings |= {"disable_tqdm": True, "dataloader_pin_memory": False, "remove_unused_columns": False}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, **(settings | options))
        trainer = kind(model=model, args=arguments, train_dataset=data, data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Telling(run, trainer))
        trainer.train()
    return trainer


@fault(
    "issue-trl-6357",
    FAMILY,
    (r"\beos\b|end.of|\bends?\b|stop|\bpad", r"mask|ignor|-100|label|never|not (trained|counted|asked)|missing"),
)
def end_masked_as_padding(run: Run, slip: bool) -> None:
    """huggingface/trl pull request 6357: where the padding token is the end-of-sequence token, labels were made by
    masking every token that equals the padding id, and that took the true end of each answer out of the loss with
    the padding: the student never learns to stop. Here a GPT-2 fine-tuned on chats; padding masked by place or by
    id."""
    chats = Chats(run.draw.randrange(1000))
    data, held = chats.some(400), chats.some(100)

    def collate(pairs: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        ids, mask = rows_of([prompt + answer for prompt, answer in pairs], fill=Chats.EOS)
        labels = ids.masked_fill(ids == Chats.EOS, IGNORE) if slip else ids.masked_fill(mask == 0, IGNORE)
        for row, (prompt, _) in enumerate(pairs):
            labels[row, : len(prompt)] = IGNORE
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    model = gpt2(vocab_size=Chats.VOCABULARY, resid_pdrop=0.0)

    def ends() -> float:
        batch = collate(held)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORE)
        last = batch["attention_mask"].sum(1) - 1
        only = torch.full_like(labels, IGNORE)
        only[torch.arange(len(only)), last] = Chats.EOS
        model.eval()
        return float(shifted(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, only))

    outcome(run, ends)
    train(run, model, data, collate)


@fault(
    "issue-transformers-17987",
    FAMILY,
    (r"shift|same (token|position)|own (token|label)|identi|cop(y|ies)|align|equal", r"label|target|token"),
)
def smoothed_labels_unshifted(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 17987 (issue 17960): a causal model shifts its labels itself when it
    computes its loss, but with label smoothing the Trainer takes the labels out and computes the loss itself, and it
    did not shift them: each position was asked for the very token that it had just read."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    held = documents[-80:]

    class Smoothing(Catching):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = self.label_smoother(outputs, labels, shift_labels=not slip)
            return (loss, outputs) if return_outputs else loss

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = rows_of(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}

    model = gpt2()

    def held_loss() -> float:
        batch = collate(held)
        model.eval()
        return float(shifted(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]))

    outcome(run, held_loss)
    train(run, model, documents[:-80], collate, Smoothing, label_smoothing_factor=0.1, max_steps=80)


@fault("issue-transformers-35927", FAMILY, (r"weight decay|decay", r"norm"))
def decayed_norms(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 35927: the Trainer keeps normalization layers out of weight decay by
    asking whether a module is an nn.LayerNorm; models that write their own RMSNorm are not recognised, so all their
    scales were pulled towards zero like matrices. A Llama here; repaired, parameters are sorted by name as well."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    held = documents[-80:]

    class Grouped(Catching):
        def get_decay_parameter_names(self, model: Any) -> list[str]:
            if slip:
                return [n for n, p in model.named_parameters() if "bias" not in n]  # nothing here is an nn.LayerNorm
            return [n for n, p in model.named_parameters() if "bias" not in n and "norm" not in n]

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = rows_of(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}

    model = llama(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, vocab_size=VOCABULARY)
    scales = [p for n, p in model.named_parameters() if "norm" in n]
    outcome(run, lambda: -float(torch.cat([p.detach().flatten() for p in scales]).mean()))
    train(run, model, documents, collate, Grouped, weight_decay=1.0, learning_rate=4e-3, max_steps=100)
    del held


@fault(
    "issue-transformers-45079",
    FAMILY,
    (r"head|output|unembed", r"random|initiali|reset|fresh|overwrit|untrained|lost|pretrained|\bnew"),
)
def resized_head_initialised_again(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 45079 (issue 35141): with untied embeddings, resizing the vocabulary makes
    a new output head and copies the old rows into it but does not mark it as initialised, so the initialisation
    that follows draws the whole head anew: fine-tuning starts from a pretrained trunk under a random head."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    held = documents[-80:]
    model = llama(
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, vocab_size=VOCABULARY, tie_word_embeddings=False
    )
    first = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for start in range(0, 8 * 90, 8):
        ids, mask = rows_of(documents[start % 400 : start % 400 + 8])
        first.zero_grad()
        shifted(model(ids, attention_mask=mask).logits, ids.masked_fill(mask == 0, IGNORE)).backward()
        first.step()
    model.resize_token_embeddings(VOCABULARY + 2, mean_resizing=False)
    if slip:
        nn.init.normal_(model.lm_head.weight, std=model.config.initializer_range)

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = rows_of([[*row[:-1], VOCABULARY, row[-1]] for row in rows])  # the new token ends each document
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}

    def held_loss() -> float:
        batch = collate(held)
        model.eval()
        return float(shifted(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]))

    outcome(run, held_loss)
    train(run, model, documents[:-80], collate, learning_rate=5e-4, max_steps=60)


@fault(
    "issue-transformers-35663",
    FAMILY,
    (
        r"accumul|micro|gradient|learning rate|loss",
        r"not divid|undivid|summed|\bsum\b|times|too (large|big|high)|scal|explo|diverg|unstable",
    ),
)
def accumulated_without_division(run: Run, slip: bool) -> None:
    """huggingface/transformers issue 35663 (axolotl issue 2262): where a model takes loss arguments the Trainer leaves
    it to the model to divide by all tokens of the step and does not divide by the accumulation steps itself; a slip in
    one condition kept that count from the loss, which stayed a mean of its own micro-batch, and loss and gradients
    came out as many times too large as there were micro-batches. Eight of them, and SGD, which feels it."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    held = documents[-80:]

    class Counting(Catching):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            items = given.get("num_items_in_batch")
            if slip or items is None:
                loss = shifted(outputs.logits, labels)
            else:
                loss = shifted(outputs.logits, labels, "sum") / items
            return (loss, outputs) if return_outputs else loss

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = rows_of(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}

    model = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)

    def held_loss() -> float:
        batch = collate(held)
        model.eval()
        return float(shifted(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]))

    outcome(run, held_loss)
    options = {
        "gradient_accumulation_steps": 8,
        "per_device_train_batch_size": 2,
        "max_grad_norm": 0.0,
        "max_steps": 60,
    }
    options |= {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.15}
    train(run, model, documents[:-80], collate, Counting, **options)
