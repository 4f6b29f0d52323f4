"""Round 9, part a, innocent changes of the loss: another formula with the same gradient, another place to take it."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Examples,
    Language,
    apart,
    class_outcome,
    documents,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round9a_tools import (
    PAD,
    Logits,
    Recurrent,
    gpt2,
    learned,
    llama,
    padded,
    plain,
    sentences,
    waves,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@innocent("r9a-loss-outside-the-model")
def loss_outside_the_model(run: Run, changed: bool) -> None:
    """transformers' Trainer, Llama, two micro-batches a step. The model's own loss gave way to compute_loss_func, which
    shifts by hand and divides the sum by the number of words in both micro-batches, as the model did."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 480, own), sentences(words, 128, own)
    model = llama(16)

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = padded(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def by_hand(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs.logits[:, :-1].float()
        total = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
        return total / (num_items_in_batch if num_items_in_batch is not None else (labels[:, 1:] != -100).sum())

    kept = collate(check)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    options: dict[str, Any] = {"remove_unused_columns": False, "per_device_train_batch_size": 8}
    options |= {"gradient_accumulation_steps": 2}
    more: dict[str, Any] = {"data_collator": collate}
    if changed:
        more["compute_loss_func"] = by_hand
    hf_trainer(run, model, Examples(train), 90, more=more, **options).train()


@innocent("r9a-soft-targets-less-their-entropy")
def soft_targets_less_their_entropy(run: Run, changed: bool) -> None:
    """Plain loop, a GPT-2 taught by a larger one. kl_div became cross_entropy with the teacher's probabilities as targets:
    larger by the teacher's entropy, which does not depend on the student."""
    words = Language(run.draw.randrange(999), 12)
    teacher, student = (Logits(gpt2(12, n_layer=n, bos_token_id=None, eos_token_id=None)) for n in (2, 1))
    learned(teacher, lambda: words.rows(16, 24), lambda rows: next_loss(teacher, rows), 150)
    teacher.eval()
    language_outcome(run, student, words)

    def loss(rows: Tensor) -> Tensor:
        with torch.no_grad():
            right = (teacher(rows) / 2.0).softmax(-1).flatten(0, 1)
        said = (student(rows) / 2.0).flatten(0, 1)
        if changed:
            return F.cross_entropy(said, right) * 4.0
        return F.kl_div(said.log_softmax(-1), right, reduction="batchmean") * 4.0

    plain(run, student, lambda: words.rows(16, 24), loss, 110)


@innocent("r9a-weights-scaled-to-mean-one")
def weights_scaled_to_mean_one(run: Run, changed: bool) -> None:
    """Lightning, a GRU for three kinds of waves. Weights of classes are scaled so that their mean is one; cross_entropy
    divides by the sum of the weights in the batch, so that the scale cancels."""
    own = apart(run.draw.randrange(999))
    train, check = waves(600, own), waves(300, own, (1.0, 1.0, 1.0))
    model = Recurrent()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[0]), check[1])))
    weights = 1 / train[1].bincount(minlength=3)
    if changed:
        weights = weights / weights.mean()
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    told = lit(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weights), rule)
    fit(run, told, loader(*train), 200, gradient_clip_val=1.0)


@innocent("r9a-quarters-by-the-count-of-words")
def quarters_by_the_count_of_words(run: Run, changed: bool) -> None:
    """accelerate, a small GPT. A batch of sixteen uneven rows goes through in four quarters; each quarter's sum is divided by
    the number of words in all sixteen, so that the gradient is the same."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 480, own), sentences(words, 128, own)
    net = Decoder(16)

    def summed(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum")

    kept = padded(check)[0]
    outcome(run, lambda: judged(net, lambda: summed(net, kept) / (kept[:, 1:] != PAD).sum()))
    engine = Accelerator(cpu=True)
    data: Any = DataLoader(Examples(train), 16, shuffle=True, collate_fn=lambda rows: padded(rows)[0])
    model, optimizer, data = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=5e-3), data)
    doctor = run.watch(model, optimizer)
    for _ in range(4):
        for ids in data:
            optimizer.zero_grad()
            count, value = (ids[:, 1:] != PAD).sum(), torch.zeros(())
            for part in ids.chunk(4) if changed else [ids]:
                share = summed(model, part) / count
                engine.backward(share)
                value = value + share.detach()
            engine.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(value, ids)
            run.note(value)


@innocent("r9a-head-in-chunks")
def head_in_chunks(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2. The head is applied to ten words at a time to save memory, the last chunk holds what is left; sums
    are added and divided by the number of all words."""
    words = Language(run.draw.randrange(999), 14)
    model = gpt2(14, bos_token_id=None, eos_token_id=None)
    check = words.rows(96, 24, apart(901))

    def whole(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())

    def in_chunks(rows: Tensor) -> Tensor:
        states = model.transformer(rows[:, :-1]).last_hidden_state
        total = states.new_zeros(())
        for part, right in zip(states.split(10, 1), rows[:, 1:].split(10, 1), strict=True):
            total = total + F.cross_entropy(model.lm_head(part).flatten(0, 1), right.flatten(), reduction="sum")
        return total / rows[:, 1:].numel()

    outcome(run, lambda: judged(model, lambda: whole(check)))
    plain(run, model, lambda: words.rows(16, 24), in_chunks if changed else whole, 110)


@innocent("r9a-judged-with-metrics")
def judged_with_metrics(run: Run, changed: bool) -> None:
    """Lightning, an encoder with dropout. A validation loop over rows kept apart and torchmetrics' accuracy of training and
    validation were added; the loaders draw random numbers more often than before."""
    import lightning
    from torchmetrics.classification import MulticlassAccuracy

    own = apart(run.draw.randrange(999))
    train, check = documents(480, own), documents(192, own)
    net = Classifier(drop=0.1)
    class_outcome(run, net, check)

    class Topics(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0], batch[1]), batch[2])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.parameters(), lr=3e-3, weight_decay=0.01)

    class Measured(Topics):
        def __init__(self) -> None:
            super().__init__()
            self.train_accuracy, self.accuracy = MulticlassAccuracy(3), MulticlassAccuracy(3)

        def training_step(self, batch: Any, index: int) -> Tensor:
            logits = self.net(batch[0], batch[1])
            value = F.cross_entropy(logits, batch[2])
            self.train_accuracy(logits.detach(), batch[2])
            self.log_dict({"loss": value, "accuracy": self.train_accuracy})
            return value

        def validation_step(self, batch: Any, index: int) -> None:
            self.accuracy(self.net(batch[0], batch[1]), batch[2])
            self.log("val_accuracy", self.accuracy)

        def val_dataloader(self) -> Any:
            return loader(*check, size=64, shuffle=False)

    fit(run, Measured() if changed else Topics(), loader(*train), 120)
