"""Round 9b, innocent changes of loading, tuning, evaluation and of what runs the loop."""

import copy
import io
import math
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    loader,
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import by_reward, near, taught, words_to_answer
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    dpo_loss,
    llama,
    preferred,
    reseeded,
    steps,
    text_class_outcome,
    texts,
    told_loss,
)
from benchmarks.robustness.loops.round9b_parts import (
    ResNet,
    adapted,
    margin,
    picture_outcome,
    recitals,
    seen,
    tiny_vit,
    trainable,
)
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r9b-second-stage-from-a-file")
def second_stage_from_a_file(run: Run, changed: bool) -> None:
    """GPT-2 with dropout; the second stage went on with the objects of the first, and now reads weights, optimizer, schedule
    and random numbers from its file into new ones."""
    language = Language(run.draw.randrange(999))

    def made() -> tuple[Any, Any, Any]:
        model = tiny_gpt2(12, pad_token_id=None, n_layer=2, resid_pdrop=0.1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)

    model, optimizer, schedule = made()
    for _ in range(60):
        optimizer.zero_grad()
        causal_loss(model, language.rows(16, 20)).backward()
        optimizer.step()
        schedule.step()
    if changed:
        file = io.BytesIO()
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        torch.save({k: v.state_dict() for k, v in parts.items()} | {"random": torch.get_rng_state()}, file)
        file.seek(0)
        stored = torch.load(file)
        model, optimizer, schedule = made()
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        schedule.load_state_dict(stored["schedule"])
        torch.set_rng_state(stored["random"])
    causal_outcome(run, model, language)
    batch, after = lambda: language.rows(16, 20), lambda _: schedule.step()
    steps(run, model, optimizer, batch, causal_loss, 90, after=after, scheduler=schedule)


@innocent("r9b-adapter-saved-and-taken-up")
def adapter_saved_and_taken_up(run: Run, changed: bool) -> None:
    """A Llama is tuned through adapters in two stages; between them the adapter is now saved and taken up, trainable, on the
    base loaded anew. The optimizer begins anew in either case."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 16), causal_loss, 80)
    state = copy.deepcopy(base.state_dict())
    other = near(language, seed + 1, 0.5)
    model = adapted(base, lora_dropout=0.1)
    taught(model, lambda: other.rows(16, 16), causal_loss, 30)
    if changed:
        from peft import PeftModel

        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = llama()
            again.load_state_dict(state)
            model = PeftModel.from_pretrained(again, folder, is_trainable=True).train()
    causal_outcome(run, model, other)
    optimizer = torch.optim.AdamW(trainable(model), lr=5e-3)
    steps(run, model, optimizer, lambda: other.rows(16, 20), causal_loss, 80)


@innocent("r9b-reference-by-switching-off")
def reference_by_switching_off(run: Run, changed: bool) -> None:
    """A Llama learns preferences by DPO through new adapters. The reference was a copy of the model without them, and is now
    the model itself with its adapters disabled."""
    language = Language(run.draw.randrange(999))
    base = llama()
    taught(base, lambda: language.rows(16, 12), causal_loss, 80)
    frozen = copy.deepcopy(base).requires_grad_(False)
    model = adapted(base)

    @torch.no_grad()
    def reference(batch: tuple[Tensor, Tensor]) -> Tensor:
        if not changed:
            return margin(frozen, *batch)
        with model.disable_adapter():
            return margin(model, *batch)

    check = preferred(language, 256, apart(1))
    stored = margin(frozen, *check)
    outcome(run, lambda: judged(model, lambda: dpo_loss(margin(model, *check), stored)))
    optimizer = torch.optim.AdamW(trainable(model), lr=3e-3)
    loss = lambda m, batch: dpo_loss(margin(m, *batch), reference(batch))
    steps(run, model, optimizer, lambda: preferred(language, 16), loss, 60)


@innocent("r9b-teacher-inside-the-module")
def teacher_inside_the_module(run: Run, changed: bool) -> None:
    """Lightning, a small network learns from a residual one with dropout and batch norms. The teacher stood beside the
    module and is now a part of it, frozen, and kept in evaluation mode by the module's train()."""
    import lightning

    seed = run.draw.randrange(99)
    teacher = ResNet(drop=0.5)
    taught(teacher, lambda: pictures(32, seed), classify, 150)
    teacher.eval().requires_grad_(False)
    student = cnn(norm=False)

    def divergence(x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        return 4 * F.kl_div((student(x) / 2).log_softmax(1), wanted, reduction="batchmean")

    check = pictures(256, seed, own=apart(1))[0]
    outcome(run, lambda: judged(student, lambda: divergence(check)))

    class Distilled(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.student = student
            if changed:
                self.teacher = teacher

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            teacher.eval()
            return self

        def training_step(self, batch: Any, index: int) -> Tensor:
            return divergence(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.student.parameters(), lr=4e-3)

    fit(run, Distilled(), loader(*pictures(320, seed)), 100)


@innocent("r9b-features-kept")
def features_kept(run: Run, changed: bool) -> None:
    """A new head on a frozen vision transformer: the body saw each picture in each epoch; now it sees it once, and its
    features are kept. Another seed."""
    seed = run.draw.randrange(99)
    model = tiny_vit()
    taught(model, lambda: pictures(32, seed), seen, 120, 3e-3)
    reseeded(run, changed)
    turn = torch.tensor([1, 2, 3, 0])
    (x, y), (x2, y2) = pictures(320, seed, own=apart(seed)), pictures(256, seed, own=apart(1))
    model.vit.requires_grad_(False)
    model.classifier.reset_parameters()
    picture_outcome(run, model, (x2, turn[y2]), seen)

    @torch.no_grad()
    def features(pixels: Tensor) -> Tensor:
        out: Tensor = model.vit(pixel_values=pixels).last_hidden_state[:, 0]
        return out

    kept = features(x)
    optimizer = torch.optim.AdamW(model.classifier.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for inputs, classes in (batch for _ in range(5) for batch in loader(kept if changed else x, turn[y])):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.classifier(inputs if changed else features(inputs)), classes)
        loss.backward()
        optimizer.step()
        doctor.step(loss, (inputs, classes))
        run.note(loss)


@innocent("r9b-rewards-by-table")
def rewards_by_table(run: Run, changed: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. The reward of a completion is kept in a table by prompt and completion and looked up when
    the same comes again."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)
    known: dict[tuple[str, str], float] = {}

    def judge(text: str, answer: str) -> float:
        return float(text.split()[:1] == [answer])

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        if not changed:
            return [judge(text, a) for text, a in zip(completions, answer, strict=True)]
        keys = list(zip(prompts, completions, strict=True))
        for key, a in zip(keys, answer, strict=True):
            if key not in known:
                known[key] = judge(key[1], a)
        return [known[key] for key in keys]

    by_reward(run, "GRPO", model, prompts, reward, steps=60, learning_rate=1e-2, max_completion_length=1).train()


@innocent("r9b-evaluated-and-saved")
def evaluated_and_saved(run: Run, changed: bool) -> None:
    """GPT-2 with dropout in transformers' Trainer, which now evaluates on held-out rows and saves every twenty steps."""
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2, resid_pdrop=0.1, embd_pdrop=0.1)
    causal_outcome(run, model, language)
    rows, held = language.rows(640, 20), language.rows(64, 20, apart(5))
    settings: dict[str, Any] = {"learning_rate": 4e-3}
    with tempfile.TemporaryDirectory() as folder:
        if changed:
            settings |= {"eval_strategy": "steps", "eval_steps": 20, "save_strategy": "steps", "save_steps": 20}
            settings |= {"save_total_limit": 2, "output_dir": folder}
            settings["more"] = {"eval_dataset": examples(input_ids=held, labels=held)}
        hf_trainer(run, model, examples(input_ids=rows, labels=rows), 120, **settings).train()


@innocent("r9b-samples-and-side-set-back")
def samples_and_side_set_back(run: Run, changed: bool) -> None:
    """GPT-2 with dropout in transformers' Trainer, texts of unequal lengths. A new callback writes samples every 25 steps,
    for which the tokenizer pads on the left, and sets the side back."""
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from transformers import DataCollatorForLanguageModeling, TrainerCallback

    seed = run.draw.randrange(999)
    model, tokenizer = tiny_gpt2(16, n_layer=2, resid_pdrop=0.1), word_tokenizer(16)
    check = tokenizer.pad({"input_ids": recitals(seed, 96, apart(1))}, return_tensors="pt")
    told = check["input_ids"].masked_fill(check["attention_mask"] == 0, -100)
    outcome(run, lambda: judged(model, lambda: model(**check, labels=told).loss))

    class Sampling(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step % 25 == 0:
                side, tokenizer.padding_side = tokenizer.padding_side, "left"
                asked = tokenizer.pad({"input_ids": [[4, 5], [6], [7, 8, 9]]}, return_tensors="pt")
                model.eval()
                model.generate(**asked, max_new_tokens=6, do_sample=True)
                model.train()
                tokenizer.padding_side = side

    rows = Examples([{"input_ids": row} for row in recitals(seed, 480)])
    more = {"data_collator": DataCollatorForLanguageModeling(tokenizer, mlm=False)}
    trainer = hf_trainer(run, model, rows, 120, more=more)
    if changed:
        trainer.add_callback(Sampling())
    trainer.train()


@innocent("r9b-noise-taken-back")
def noise_taken_back(run: Run, changed: bool) -> None:
    """A Llama; every ten steps its loss is now asked for at weights with noise on them, drawn by a generator apart, and the
    weights are put back from clones."""
    language = Language(run.draw.randrange(999))
    model = llama()
    causal_outcome(run, model, language)
    held, own = language.rows(32, 20, apart(4)), apart(6)

    @torch.no_grad()
    def flatness(step: int) -> None:
        if changed and step % 10 == 9:
            kept = [p.clone() for p in model.parameters()]
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=own), alpha=0.02)
            judged(model, lambda: causal_loss(model, held))
            for p, before in zip(model.parameters(), kept, strict=True):
                p.copy_(before)

    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 100, after=flatness)


@innocent("r9b-vit-given-to-lightning")
def vit_given_to_lightning(run: Run, changed: bool) -> None:
    """A vision transformer in a plain loop, then in Lightning, with the same warm-up by steps and bound of the norm. Another
    seed."""
    import lightning

    seed = run.draw.randrange(99)
    reseeded(run, changed)
    net = tiny_vit()
    picture_outcome(run, net, pictures(512, seed, own=apart(1)), seen)
    data = loader(*pictures(480, seed, own=apart(seed)))

    def made() -> tuple[Any, Any]:
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
        factor = lambda t: min(1.0, (t + 1) / 20) * 0.5 * (1 + math.cos(math.pi * t / 120))
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    class Seeing(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return seen(self.net, batch)

        def configure_optimizers(self) -> Any:
            optimizer, schedule = made()
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    if changed:
        fit(run, Seeing(), data, 120, gradient_clip_val=1.0)
        return
    optimizer, schedule = made()
    batches = endless(data)
    clip = lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    after = lambda _: schedule.step()
    steps(run, net, optimizer, lambda: next(batches), seen, 120, between=clip, after=after, scheduler=schedule)


@innocent("r9b-bert-given-to-the-trainer")
def bert_given_to_the_trainer(run: Run, changed: bool) -> None:
    """BERT reads texts in a plain loop, then in transformers' Trainer: decay for all but biases and norms, a rate that rises
    for ten steps and falls to zero, a bound of the norm. Another seed."""
    from transformers import get_linear_schedule_with_warmup

    own = apart(run.draw.randrange(999))
    reseeded(run, changed)
    model = tiny_bert()
    text_class_outcome(run, model, texts(512, apart(1)))
    rows = texts(480, own)
    if changed:
        settings: dict[str, Any] = {"learning_rate": 3e-3, "weight_decay": 0.1, "warmup_steps": 10}
        hf_trainer(run, model, examples(**rows), 120, **settings).train()
        return
    bare = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    rest = [p for name, p in model.named_parameters() if not ("bias" in name or "LayerNorm" in name)]
    groups: list[Any] = [{"params": rest, "weight_decay": 0.1}, {"params": bare, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 120)
    order = endless(loader(torch.arange(480)))

    def batch() -> dict[str, Tensor]:
        chosen = next(order)[0]
        return {k: v[chosen] for k, v in rows.items()}

    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    after = lambda _: schedule.step()
    steps(run, model, optimizer, batch, told_loss, 120, between=clip, after=after, scheduler=schedule)
