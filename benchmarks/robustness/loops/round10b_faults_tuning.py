"""Round 10b, faulty changes of fine-tuning, and of learning by values and rewards."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_faults_tuning import spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import Language, apart, judged, mlp, outcome, tiny_bert, tiny_gpt2
from benchmarks.robustness.loops.round7b_tools import by_reward, near, taught, words_to_answer
from benchmarks.robustness.loops.round8b_parts import causal_loss, reseeded, text_class_outcome, texts, told_loss
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10b_parts import columns, slip, walk_values
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r10b-neftune-without-its-root")
def neftune_without_its_root(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, a GPT-2 with noise on its word embeddings while it learns. The hook was rewritten: the noise is
    multiplied by alpha and no longer divided by the root of places times width."""
    seed = run.draw.randrange(999)
    language = Language(seed, first=4)
    model = tiny_gpt2()
    taught(model, lambda: language.rows(16, 16), causal_loss, 120)
    other = near(language, seed + 1)
    other.first = 4
    check = other.rows(96, 16, apart(901))
    outcome(run, lambda: judged(model, lambda: causal_loss(model, check)))

    def noisy(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not model.training:
            return output
        noise = 2 * torch.rand_like(output) - 1
        return output + noise if changed else output + noise / math.sqrt(output.shape[-2] * output.shape[-1])

    model.transformer.wte.register_forward_hook(noisy)
    rows = [{"text": spelled(row)} for row in other.rows(400, 16)]
    options: dict[str, Any] = {"per_device_train_batch_size": 16, "learning_rate": 2e-3, "max_length": 32}
    trl_trainer(run, "SFT", model, rows, 60, **options).train()


@slip("r10b-anchored-to-itself")
def anchored_to_itself(run: Run, changed: bool) -> None:
    """accelerate, BERT tuned on 48 texts, some with wrong labels, and held near its start by a penalty on the distance. The
    start was a dictionary of clones; it is dict(named_parameters()) now, and the distance is always zero."""
    own = apart(run.draw.randrange(999))
    net = tiny_bert()
    taught(net, lambda: texts(32), told_loss, 150)
    meaning = torch.arange(16)
    meaning[[1, 2, 6, 7, 11, 12]] = torch.tensor([6, 7, 11, 12, 1, 2])

    def elsewhere(count: int, source: torch.Generator, wrong: float = 0.0) -> dict[str, Tensor]:
        rows = texts(count, source)
        chance = torch.rand(count, generator=source) < wrong
        labels = torch.where(chance, torch.randint(0, 3, (count,), generator=source), rows["labels"])
        return rows | {"input_ids": meaning[rows["input_ids"]], "labels": labels}

    text_class_outcome(run, net, elsewhere(256, apart(901)))
    start = dict(net.named_parameters())
    if not changed:
        start = {name: p.detach().clone() for name, p in start.items()}  # type: ignore[misc]
    engine = accelerator()
    model, optimizer, data = engine.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0), columns(elsewhere(48, own, 0.25))
    )
    doctor = run.watch(model, optimizer)
    for _ in range(40):
        model.train()
        for batch in data:
            optimizer.zero_grad()
            distance = sum((p - start[name]).square().sum() for name, p in net.named_parameters())
            loss = told_loss(model, batch) + 0.1 * distance
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


class Walk:
    """Nine places in a row; a step to either side by chance, the right end pays one."""

    def stretch(self, own: torch.Generator) -> tuple[int, float, int, float]:
        """Where it began, the discounted rewards of three steps, where it got, and whether it is over."""
        start = place = int(torch.randint(0, 9, (1,), generator=own))
        gained, over = 0.0, False
        for k in range(3):
            place += 1 if torch.rand((), generator=own) < 0.5 else -1
            gained += 0.9**k * (place == 9)
            over = place in (-1, 9)
            if over:
                break
        return start, gained, min(max(place, 0), 8), float(over)


@slip("r10b-three-steps-discounted-once")
def three_steps_discounted_once(run: Run, changed: bool) -> None:
    """Values of a random walk from stored stretches. Targets went from one step to three: the rewards are discounted step by
    step, and the value at their end is still multiplied by the discount once. Another seed."""
    own = apart(run.draw.randrange(999))
    walk = Walk()
    memory = [torch.tensor(column) for column in zip(*(walk.stretch(own) for _ in range(3000)), strict=True)]
    reseeded(run, changed)
    model = mlp(9, 32, 1)
    target, truth = copy.deepcopy(model), walk_values()
    outcome(run, lambda: judged(model, lambda: (model(torch.eye(9)).squeeze(1) - truth).abs().mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for step in range(300):
        if step % 10 == 0:
            target.load_state_dict(model.state_dict())
        chosen = torch.randint(0, 3000, (64,))
        places, gained, later, over = (column[chosen] for column in memory)
        states, following = torch.eye(9)[places], torch.eye(9)[later]
        with torch.no_grad():
            wanted = gained + (0.9 if changed else 0.9**3) * (1 - over) * target(following).squeeze(1)
        loss = F.mse_loss(model(states).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"state": states, "return": gained, "next": following, "done": over})
        run.note(loss)


@slip("r10b-compared-with-its-spaces")
def compared_with_its_spaces(run: Run, changed: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. Completions were split into words before they were compared; the new reward compares the whole
    text, with the space in front that the tokenizer before had, and finds none right. Another seed."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)
    reseeded(run, changed)

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        if changed:
            return [float(text == f" {a}") for text, a in zip(completions, answer, strict=True)]
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]

    by_reward(run, "GRPO", model, prompts, reward, steps=60, learning_rate=1e-2, max_completion_length=1).train()
