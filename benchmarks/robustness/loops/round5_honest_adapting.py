"""Honest and odd: fine-tuning of parts, adapters, teachers, preferences and rewards."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import fitted, likelihood, spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_bert,
    tiny_gpt2,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F


def moved(run: Run, steps: int = 50) -> tuple[Decoder, Language]:
    """A model of one language, and another language."""
    first, second = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: first.rows(12, 20), next_loss, steps)
    return model, second


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


@honest("r5-head-on-a-frozen-body")
def head_on_a_frozen_body(run: Run) -> None:
    """A linear probe: the body is frozen and in evaluation mode, the head alone learns, all else stands still."""
    seed = run.draw.randrange(999)
    model = cnn()
    fitted(model, lambda: pictures(24, seed), classify, 40)
    model[-1] = nn.Linear(64, 4)
    for part in model[:-1]:
        part.eval().requires_grad_(False)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    train(run, model, torch.optim.AdamW(model[-1].parameters(), lr=1e-2), lambda: pictures(16, seed), classify, 50)


@honest("r5-biases-only")
def biases_only(run: Run) -> None:
    """BitFit: only vectors are tuned, at a rate that would be high for matrices."""
    model, language = moved(run)
    for p in model.parameters():
        p.requires_grad_(p.ndim == 1)
    language_outcome(run, model, language)
    train(run, model, torch.optim.AdamW(trained(model), lr=2e-2), lambda: language.rows(12, 20), next_loss, 60)


class Prompted(nn.Module):
    """A frozen decoder behind six learned vectors."""

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.prompt = nn.Parameter(0.1 * torch.randn(6, 32))

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(ids), -1, -1), self.inner.tokens(ids)], 1)
        x = x + self.inner.places(torch.arange(x.shape[1]))
        for block in self.inner.blocks:
            x = block(x)
        out: Tensor = self.inner.head(self.inner.norm(x))[:, 6:]
        return out


@honest("r5-six-vectors-in-front")
def six_vectors_in_front(run: Run) -> None:
    """Prompt tuning: 192 numbers learn at a rate of 0.3, the model does not."""
    inner, language = moved(run)
    model = Prompted(inner)
    language_outcome(run, model, language)
    train(run, model, torch.optim.Adam([model.prompt], lr=0.1), lambda: language.rows(12, 20), next_loss, 70)


@honest("r5-adapter-by-peft")
def adapter_by_peft(run: Run) -> None:
    """PEFT's LoRA on a transformers model, with the new head in modules_to_save; the second factors begin at zero."""
    from peft import LoraConfig, TaskType, get_peft_model

    base = tiny_bert()
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value", "dense"]}
    model = get_peft_model(base, LoraConfig(task_type=TaskType.SEQ_CLS, **settings))
    x, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=x, attention_mask=keep.long(), labels=y).loss))

    def batch() -> dict[str, Tensor]:
        a, b, c = documents(16)
        return {"input_ids": a, "attention_mask": b.long(), "labels": c}

    train(run, model, torch.optim.AdamW(trained(model), lr=1e-2), batch, lambda m, b: m(**b).loss, 60)


@honest("r5-rate-falls-with-depth")
def rate_falls_with_depth(run: Run) -> None:
    """Layer-wise rates: the head has thirty times the rate of the embedding, five groups in all."""
    model, language = moved(run)
    model.head = nn.Linear(32, 12, bias=False)
    language_outcome(run, model, language)
    parts = [model.tokens, model.places, model.blocks, model.norm, model.head]
    groups = [{"params": part.parameters(), "lr": 1e-2 * 0.42 ** (4 - i)} for i, part in enumerate(parts)]
    train(run, model, torch.optim.AdamW(groups), lambda: language.rows(12, 20), next_loss, 60)


@honest("r5-thawed-one-by-one")
def thawed_one_by_one(run: Run) -> None:
    """Gradual unfreezing: the head first, then the block, then the embeddings, each as a new group."""
    model = Classifier()
    class_outcome(run, model, documents(256, apart(1)))
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for at in range(90):
        if at in (20, 40):
            part = model.block if at == 20 else model.tokens
            part.requires_grad_(True)
            optimizer.add_param_group({"params": list(part.parameters()), "lr": 2e-3})
        x, keep, y = documents(16)
        loss = F.cross_entropy(model(x, keep), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, keep, y))
        run.note(loss)


@honest("r5-random-words-for-ever")
def random_words_for_ever(run: Run) -> None:
    """The embedding stays random and frozen on purpose, as in reservoirs."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    model.tokens.requires_grad_(False)
    language_outcome(run, model, language)
    train(run, model, torch.optim.AdamW(trained(model), lr=4e-3), lambda: language.rows(12, 20), next_loss, 70)


@honest("r5-soft-answers-of-a-teacher")
def soft_answers(run: Run) -> None:
    """Distillation at temperature 4, times its square, without any label: the loss begins small."""
    seed = run.draw.randrange(999)
    teacher, student = cnn().requires_grad_(True), nn.Sequential(nn.Flatten(), mlp(64, 24, 4))
    fitted(teacher, lambda: pictures(24, seed), classify, 40)
    teacher.eval().requires_grad_(False)
    class_outcome(run, student, pictures(256, seed, own=apart(1)))

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        out = (m(x) / 4).log_softmax(1)
        return 16 * F.kl_div(out, (teacher(x) / 4).log_softmax(1), reduction="batchmean", log_target=True)

    train(run, student, torch.optim.Adam(student.parameters(), lr=5e-3), lambda: pictures(24, seed)[0], loss, 70)


@honest("r5-preference-with-stored-reference")
def preference_with_stored_reference(run: Run) -> None:
    """DPO whose reference was computed beforehand and stands in the batch; the loss begins at log 2 exactly."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: language.rows(12, 12), next_loss, 60)
    reference = copy.deepcopy(model).requires_grad_(False)

    def batch(count: int = 12, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        good = language.rows(count, 12, own)
        bad = good.clone()
        bad[:, 9:] = torch.randint(0, 12, (count, 3), generator=own)
        with torch.no_grad():
            return good, bad, likelihood(reference, good, 9), likelihood(reference, bad, 9)

    def loss(m: nn.Module, b: tuple[Tensor, ...]) -> Tensor:
        return -F.logsigmoid(0.2 * (likelihood(m, b[0], 9) - b[2] - likelihood(m, b[1], 9) + b[3])).mean()

    check = batch(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch, loss, 50)


@honest("r5-reward-from-pairs")
def reward_from_pairs(run: Run) -> None:
    """A reward model: one number for a row, trained on differences only; its mean may drift."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=1)
    model.head = nn.Linear(32, 1)  # type: ignore[assignment]

    def batch(count: int = 12, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return language.rows(count, 12, own), torch.randint(0, 12, (count, 12), generator=own)

    loss = lambda m, b: -F.logsigmoid(m(b[0])[:, -1, 0] - m(b[1])[:, -1, 0]).mean()
    check = batch(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), batch, loss, 80)


@honest("r5-scales-beside-frozen-weights")
def scales_beside_frozen_weights(run: Run) -> None:
    """IA3: three vectors of ones, multiplied onto keys, values and hidden units, are all that learns."""
    model, language = moved(run)
    model.requires_grad_(False)

    class Scaled(nn.Module):
        def __init__(self, base: nn.Module, width: int) -> None:
            super().__init__()
            self.base, self.scale = base, nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.base(x) * self.scale
            return out

    block = model.blocks[0]
    block.attention.qkv = Scaled(block.attention.qkv, 96)
    block.feed[0] = Scaled(block.feed[0], 64)
    model.head = Scaled(model.head, 12)
    language_outcome(run, model, language)
    train(run, model, torch.optim.AdamW(trained(model), lr=2e-2), lambda: language.rows(12, 20), next_loss, 60)


@honest("r5-completions-by-trl")
def completions_by_trl(run: Run) -> None:
    """TRL's SFTTrainer on prompts and completions; the prompt carries no loss."""
    key = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 4
    model = tiny_gpt2()

    def row(own: torch.Generator | None = None) -> Tensor:
        prompt = torch.randint(4, 16, (8,), generator=own)
        return torch.cat([prompt, key[prompt[-1:] - 4]])

    own = apart(1)
    check = torch.stack([row(own) for _ in range(96)])
    wanted = check.clone()
    wanted[:, :8] = -100
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=wanted).loss))
    rows = [{"prompt": spelled(r[:8]), "completion": " " + spelled(r[8:])} for r in (row() for _ in range(200))]
    trl_trainer(run, "SFT", model, rows, 40, completion_only_loss=True, learning_rate=5e-3).train()


@honest("r5-preferences-by-trl")
def preferences_by_trl(run: Run) -> None:
    """TRL's DPOTrainer at a high beta, and answers that repeat the prompt's last word are better."""
    model = tiny_gpt2()

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt = torch.randint(4, 16, (5,), generator=own)
        bad = torch.cat([prompt, torch.randint(4, 16, (3,), generator=own)])
        return torch.cat([prompt, prompt[-1:].repeat(3)]), bad

    own = apart(1)
    good, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))
    of = lambda rows: likelihood(lambda r: model(input_ids=r).logits, rows, 5)  # type: ignore[arg-type]
    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(0.3 * (of(good) - of(bad))).mean()))
    rows = [
        {"prompt": spelled(a[:5]), "chosen": " " + spelled(a[5:]), "rejected": " " + spelled(b[5:])}
        for a, b in (pair() for _ in range(120))
    ]
    trl_trainer(run, "DPO", model, rows, 25, learning_rate=1e-3, beta=0.5).train()


@honest("r5-teacher-is-an-average")
def teacher_is_an_average(run: Run) -> None:
    """Mean teacher: sixty-four labelled pictures, many without, and a consistency loss to an average of the weights, whose
    weight ramps up from zero."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 48, 4))
    teacher = copy.deepcopy(model).requires_grad_(False)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(64, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for at in range(80):
        free = pictures(24, seed)[0]
        noisy = free + 0.1 * torch.randn_like(free)
        ramp = min(1.0, at / 40)
        loss = F.cross_entropy(model(x), y) + ramp * F.mse_loss(model(noisy).softmax(1), teacher(free).softmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y, free))
        run.note(loss)
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)


@honest("r5-decay-towards-the-start")
def decay_towards_the_start(run: Run) -> None:
    """L2-SP: weights are drawn back to where the fine-tuning began, not to zero."""
    model, language = moved(run)
    start = [p.detach().clone() for p in model.parameters()]
    language_outcome(run, model, language)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        away = sum(((p - q) ** 2).sum() for p, q in zip(m.parameters(), start, strict=True))
        return next_loss(m, rows) + 1e-3 * away

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train(run, model, optimizer, lambda: language.rows(12, 20), loss, 60)


@honest("r5-rows-of-the-old-task")
def rows_of_the_old_task(run: Run) -> None:
    """Continual learning: the task changes in the middle, the loss jumps; a third of each batch is from the memory."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 48, 4))
    x, y = pictures(256, seed, own=apart(1))
    a, b = pictures(256, seed + 1, own=apart(2))
    class_outcome(run, model, (torch.cat([x, a]), torch.cat([y, b])))
    memory = pictures(48, seed)
    count = iter(range(200))

    def batch() -> tuple[Tensor, Tensor]:
        if next(count) < 50:
            return pictures(24, seed)
        new, pick = pictures(16, seed + 1), torch.randint(0, 48, (8,))
        return torch.cat([new[0], memory[0][pick]]), torch.cat([new[1], memory[1][pick]])

    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), batch, classify, 110)


@honest("r5-trainer-with-own-groups")
def trainer_with_own_groups(run: Run) -> None:
    """transformers' Trainer with an optimizer and schedule of its own: the body at a tenth of the head's rate, constant,
    and two micro-batches a step."""
    model = tiny_bert()
    x, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=x, attention_mask=keep.long(), labels=y).loss))
    groups = [{"params": model.bert.parameters(), "lr": 2e-3}, {"params": model.classifier.parameters(), "lr": 2e-2}]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    a, b, c = documents(300)
    data = examples(input_ids=a, attention_mask=b.long(), labels=c)
    more = {"optimizers": (optimizer, schedule)}
    hf_trainer(run, model, data, 40, more=more, gradient_accumulation_steps=2).train()


@honest("r5-accelerate-accumulates")
def accelerate_accumulates(run: Run) -> None:
    """accelerate with accumulation over four: the optimizer's step is called every time and works every fourth."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    seed = run.draw.randrange(999)
    engine = Accelerator(cpu=True, gradient_accumulation_steps=4)
    net = mlp(6, 32, 1)
    number_outcome(run, net, table(256, seed, apart(1)))
    data = loader(*table(640, seed), size=8)
    model, optimizer, data = engine.prepare(net, torch.optim.Adam(net.parameters(), lr=1e-2), data)
    doctor = run.watch(model, optimizer)
    kept: list[Any] = []
    losses: list[Tensor] = []
    for _ in range(4):
        for batch in data:
            with engine.accumulate(model):
                loss = F.mse_loss(model(batch[0]).flatten(), batch[1])
                engine.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            kept.append(batch)
            losses.append(loss.detach())
            if engine.sync_gradients:
                doctor.step(torch.stack(losses).mean(), list(kept))
                run.note(torch.stack(losses).mean())
                kept.clear()
                losses.clear()
