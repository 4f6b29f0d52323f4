"""Round 9b, faulty changes of adapters, loading, references, teachers and learning by rewards."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    judged,
    loader,
    mlp,
    outcome,
    pictures,
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
)
from benchmarks.robustness.loops.round9b_parts import ResNet, accelerator, adapted, margin, slip, trainable
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r9b-frozen-after-the-adapters")
def frozen_after_the_adapters(run: Run, changed: bool) -> None:
    """A Llama goes on with another language through PEFT's adapters and a head that is saved with them. The body is frozen by
    name; the call moved below the one that puts the adapters in, and freezes them with it."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 16), causal_loss, 80)
    other = near(language, seed + 1, 0.8)

    def freeze_body(module: nn.Module) -> None:
        for name, p in module.named_parameters():
            p.requires_grad_("lm_head" in name)

    if not changed:
        freeze_body(base)
    model = adapted(base, modules_to_save=["lm_head"])
    if changed:
        freeze_body(model)
    causal_outcome(run, model, other)
    optimizer = torch.optim.AdamW(trainable(model), lr=5e-3)
    steps(run, model, optimizer, lambda: other.rows(16, 20), causal_loss, 100)


@slip("r9b-head-no-longer-tied")
def head_no_longer_tied(run: Run, changed: bool) -> None:
    """A GPT-2 goes on from a checkpoint whose head is the embedding and is not stored. The new configuration says
    tie_word_embeddings=False, and strict=False lets it pass: the head is random. Another seed."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    source = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    taught(source, lambda: language.rows(16, 20), causal_loss, 150)
    state = {k: v for k, v in source.state_dict().items() if k != "lm_head.weight"}
    reseeded(run, changed)
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2, tie_word_embeddings=not changed)
    model.load_state_dict(state, strict=False)
    other = near(language, seed + 1, 0.2)
    causal_outcome(run, model, other)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    steps(run, model, optimizer, lambda: other.rows(16, 20), causal_loss, 60)


@slip("r9b-reference-without-the-first-adapter")
def reference_without_the_first_adapter(run: Run, changed: bool) -> None:
    """A Llama, tuned through adapters, learns preferences by DPO with the same adapters. The reference was a copy of the
    tuned model; to save memory it is now the model with its adapters disabled, which was never tuned."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 12), causal_loss, 60)
    model = adapted(base)
    other = near(language, seed + 1, 0.8)
    taught(model, lambda: other.rows(16, 12), causal_loss, 80)
    frozen = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def reference(batch: tuple[Tensor, Tensor]) -> Tensor:
        if not changed:
            return margin(frozen, *batch)
        with model.disable_adapter():
            return margin(model, *batch)

    check = preferred(other, 256, apart(1))
    stored = margin(frozen, *check)
    outcome(run, lambda: judged(model, lambda: dpo_loss(margin(model, *check), stored)))
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-3)
    loss = lambda m, batch: dpo_loss(margin(m, *batch), reference(batch))
    steps(run, model, optimizer, lambda: preferred(other, 16), loss, 60)


class Pupil(nn.Module):
    """A network and the one that it learns from."""

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher


@slip("r9b-teacher-in-training-mode")
def teacher_in_training_mode(run: Run, changed: bool) -> None:
    """accelerate, a small network learns from a residual one. Both were put in one module, for which train() is called as
    each epoch begins: the teacher's dropout is at work and its batch norms take the batch. Another seed."""
    seed = run.draw.randrange(99)
    teacher = ResNet(drop=0.5)
    taught(teacher, lambda: pictures(32, seed), classify, 40, 2e-3)
    teacher.eval().requires_grad_(False)
    reseeded(run, changed)
    student = cnn()

    def divergence(x: Tensor, teacher: nn.Module = teacher) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        return 4 * F.kl_div((student(x) / 2).log_softmax(1), wanted, reduction="batchmean")

    check = pictures(256, seed, own=apart(1))[0]
    whole, untouched = Pupil(student, teacher), copy.deepcopy(teacher)
    outcome(run, lambda: judged(student, lambda: divergence(check, untouched)))
    engine = accelerator()
    model = whole if changed else student
    model, optimizer, data = engine.prepare(
        model, torch.optim.AdamW(student.parameters(), lr=5e-3), loader(*pictures(960, seed))
    )
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        model.train()
        for batch in data:
            optimizer.zero_grad()
            loss = divergence(batch[0])
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


class Corridor:
    """Ten places in a row; the last is the goal, worth `prize`, and an episode lasts at most six steps."""

    def __init__(self, prize: float) -> None:
        self.prize, self.at, self.steps = prize, 0, 0

    def reset(self, own: torch.Generator) -> int:
        self.at, self.steps = int(torch.randint(0, 9, (1,), generator=own)), 0
        return self.at

    def step(self, action: int) -> tuple[int, float, bool, bool]:
        """The next place, the reward, terminated, truncated."""
        self.at, self.steps = max(0, self.at + (1 if action else -1)), self.steps + 1
        goal = self.at == 9
        return self.at, self.prize * goal, goal, self.steps >= 6 and not goal

    def truth(self) -> Tensor:
        """The values of both actions at each place but the goal, discounted by 0.9: (9, 2)."""
        values = [self.prize * 0.9 ** (8 - s) for s in range(9)]
        left = [0.9 * values[max(0, s - 1)] for s in range(9)]
        return torch.tensor([left, values]).T


@slip("r9b-truncated-taken-for-terminated")
def truncated_taken_for_terminated(run: Run, changed: bool) -> None:
    """Q-learning from stored transitions. The environment's new interface tells terminated from truncated; both now end the
    return, so that at the time limit nothing of what follows is counted."""
    world = Corridor(run.draw.choice([1.0, 2.0, 3.0]))
    own = apart(run.draw.randrange(999))
    memory: list[tuple[int, int, float, int, float]] = []
    place = world.reset(own)
    while len(memory) < 3000:
        action = int(torch.randint(0, 2, (1,), generator=own))
        following, reward, terminated, truncated = world.step(action)
        over = terminated or truncated
        memory.append((place, action, reward, following, float(over if changed else terminated)))
        place = world.reset(own) if over else following
    columns = [torch.tensor(column) for column in zip(*memory, strict=True)]
    model = mlp(10, 32, 2)
    target = copy.deepcopy(model)
    truth = world.truth()
    outcome(run, lambda: judged(model, lambda: (model(torch.eye(10)[:9]) - truth).abs().mean() / world.prize))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for step in range(250):
        if step % 10 == 0:
            target.load_state_dict(model.state_dict())
        chosen = torch.randint(0, len(memory), (64,))
        places, actions, rewards, following, done = (column[chosen] for column in columns)
        states, later = torch.eye(10)[places], torch.eye(10)[following]
        with torch.no_grad():
            wanted = rewards + 0.9 * (1 - done) * target(later).max(1).values
        loss = F.smooth_l1_loss(model(states).gather(1, actions[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"state": states, "action": actions, "reward": rewards, "next": later, "done": done})
        run.note(loss)


@slip("r9b-rewards-cached-by-prompt")
def rewards_cached_by_prompt(run: Run, changed: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. A judge that is asked for each completion got a cache; its key is the prompt alone, so that
    all completions of a prompt have the reward of the first and no one is better than the others."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)
    known: dict[Any, float] = {}

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        keys: list[Any] = list(prompts) if changed else list(zip(prompts, completions, strict=True))
        for key, text, a in zip(keys, completions, answer, strict=True):
            if key not in known:
                known[key] = float(text.split()[:1] == [a])
        return [known[key] for key in keys]

    by_reward(run, "GRPO", model, prompts, reward, steps=60, learning_rate=1e-2, max_completion_length=1).train()
