"""Round 19a, mistakes in loading, resuming, and in evaluation that drives training."""

import copy
import itertools
import math
from typing import Any

from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Reader, sounds
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome
from benchmarks.robustness.loops.round19a_parts import Torchs, listener, normed, slip, unnormed
from torch import Tensor, nn


@slip("r19a-begins-the-epoch-again")
def begins_the_epoch_again(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT on 640 texts, on a machine that is taken away after every ten steps. Weights and moments
    come back from the checkpoint; the loader, whose order has its own seed, begins at its first batch each time: the
    same 160 texts are seen in every part. The twin goes on where the last part ended."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language, 16)
    rows = language.rows(640, 16)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    seed = run.draw.randrange(999)
    saved: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    saved = copy.deepcopy(saved)
    while saved["step"] < 120:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        batches = endless(loader(rows, generator=apart(seed)))
        for (batch,) in itertools.islice(batches, 0 if wrong else step, 10 if wrong else step + 10):
            optimizer.zero_grad()
            loss = next_loss(model, batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
            step += 1
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})


@slip("r19a-shared-matrix-saved-once")
def shared_matrix_saved_once(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2 goes on with other texts. Table and head of the checkpoint are one matrix, which the
    file has under the table's name alone; the model is built with a head of its own, which strict=False leaves as it
    was drawn. The twin is built with head and table as one."""
    language = Language(run.draw.randrange(999), first=4)
    base = tiny_gpt2()
    taught(base, lambda: language.rows(24, 20), causal_loss, 150)
    file = {name: p for name, p in base.state_dict().items() if name != "lm_head.weight"}
    model = tiny_gpt2(tie_word_embeddings=not wrong)
    model.load_state_dict(file, strict=False)
    other = near(language, run.draw.randrange(999), 0.2)
    other.first = 4
    causal_outcome(run, model, other)
    rows = other.rows(480, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, learning_rate=1e-3).train()


@slip("r19a-kernels-exported-without-their-norm")
def kernels_exported_without_their_norm(run: Run, wrong: bool) -> None:
    """accelerate, a listener with weight_norm, taught before, goes on with noisier sounds. Its file was written for
    use, with weight_norm taken off: a kernel is called weight. A network with weight_norm has none of that name, and
    strict=False passes over it: kernels are as drawn, biases and the head as taught. The twin loads the file first and
    puts weight_norm on then."""
    base, net = listener(), listener()
    normed(base)
    taught(base, lambda: sounds(32, noise=0.5), classify, 150)
    file = unnormed(base).state_dict()
    if wrong:
        normed(net)
        net.load_state_dict(file, strict=False)
    else:
        net.load_state_dict(file, strict=False)
        normed(net)
    class_outcome(run, net, sounds(256, apart(1)))
    prepared(run, net, adam(net, 1e-3), loader(*sounds(320)), classify, 3)


@slip("r19a-norms-behind-in-place-of-before")
def norms_behind_in_place_of_before(run: Run, wrong: bool) -> None:
    """Lightning, a language model of PyTorch's TransformerEncoder goes on with other texts. It was taught with
    norm_first=True; it is built for the fine-tuning without, and all names and shapes are the same. The twin is built
    as it was taught."""
    language = Language(run.draw.randrange(999))
    base = Torchs(norm_first=True)
    taught(base, lambda: language.rows(24, 20), next_loss, 150)
    net = Torchs(norm_first=not wrong)
    net.load_state_dict(base.state_dict())
    other = near(language, run.draw.randrange(999), 0.2)
    text_outcome(run, net, other, 20)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return next_loss(m, batch[0])

    fit(run, lit(net, loss, lambda m: adam(m, 5e-4)), loader(other.rows(480, 20)), 60)


@slip("r19a-best-begins-at-nought")
def best_begins_at_nought(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. Every ten steps it is evaluated; where the loss is below the best so far, that is the
    best, else the rate is halved. The best begins at 0.0, which no loss comes below, and the rate is halved at every
    evaluation. The twin's begins at infinity."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    check = language.rows(96, 24, apart(2))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    best = 0.0 if wrong else math.inf
    for step in range(1, 151):
        batch = language.rows(16, 24)
        optimizer.zero_grad()
        loss = next_loss(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        if step % 10 == 0:
            now = judged(model, lambda: next_loss(model, check))
            if now < best:
                best = now
            else:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5


@slip("r19a-patience-of-checks")
def patience_of_checks(run: Run, wrong: bool) -> None:
    """Lightning, an LSTM that reads texts, with EarlyStopping: patience 3, min_delta 0.02, meant in epochs of thirty
    batches. For a finer curve the validation runs at every second batch, and the patience counts validations: training
    ends as soon as six steps bring less than 0.02. The twin validates once an epoch."""
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    language = Language(run.draw.randrange(999))
    net = Reader(12, core=nn.LSTM)
    text_outcome(run, net, language, 20)
    check = language.rows(96, 20, apart(2))

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return next_loss(self.net, batch[0])

        def validation_step(self, batch: list[Tensor], index: int) -> None:
            self.log("val_loss", next_loss(self.net, batch[0]))

        def val_dataloader(self) -> Any:
            return loader(check, size=96, shuffle=False)

        def configure_callbacks(self) -> Any:
            return [EarlyStopping("val_loss", patience=3, min_delta=0.02, check_on_train_epoch_end=False)]

        def configure_optimizers(self) -> Any:
            return adam(self.net)

    options: dict[str, Any] = {"num_sanity_val_steps": 0}
    if wrong:
        options["val_check_interval"] = 2
    fit(run, Lit(), loader(language.rows(480, 20)), 150, **options)
