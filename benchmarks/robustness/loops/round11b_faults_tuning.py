"""Round 11b, mistakes of learning by preferences and by rewards."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Decoder, Language, apart, judged, outcome, tiny_gpt2
from benchmarks.robustness.loops.round7b_tools import by_reward, continued, said, taught, words_to_answer
from benchmarks.robustness.loops.round8b_parts import causal_loss, dpo_loss, reseeded
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round11b_parts import answer_log, answers, gpt2, slip
from torch import Tensor, nn


@slip("r11b-reference-by-the-word")
def reference_by_the_word(run: Run, changed: bool) -> None:
    """Preferences by DPO on a GPT-2. One function gives the log probability of an answer for policy and reference; it
    got an option for the mean over words, and the call for the reference, copied from another method, has it on."""
    language = Language(run.draw.randrange(999))
    model = gpt2()
    taught(model, lambda: language.rows(16, 16), causal_loss, 120)
    reference = copy.deepcopy(model).requires_grad_(False).eval()

    def loss(pairs: tuple[Tensor, ...], mean: bool) -> Tensor:
        good, in_good, bad, in_bad = pairs
        margins = answer_log(model, good, in_good) - answer_log(model, bad, in_bad)
        with torch.no_grad():
            before = answer_log(reference, good, in_good, mean) - answer_log(reference, bad, in_bad, mean)
        return dpo_loss(margins, before, 0.5)

    check = answers(language, 128, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(check, False)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        pairs = answers(language, 16)
        value = loss(pairs, changed)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, dict(zip(("chosen", "chosen_mask", "rejected", "rejected_mask"), pairs, strict=True)))
        run.note(value)


@slip("r11b-groups-across-prompts")
def groups_across_prompts(run: Run, changed: bool) -> None:
    """accelerate, a GPT that learns from groups of sampled answers. The list of prompts was repeated four times; each
    prompt is now repeated where it stands, and rewards are grouped as before. Another seed."""
    table = torch.randperm(12, generator=apart(run.draw.randrange(999)))
    reseeded(run, changed)
    net = Decoder(12)
    ids = torch.randint(0, 12, (64, 3), generator=apart(901))
    wanted = table[ids[:, 2]]

    def wrong() -> Tensor:
        second = torch.cat([ids, wanted[:, None]], 1)
        return 1 - net(second)[:, 2:].softmax(-1).gather(2, wanted[:, None, None].expand(-1, 2, 1)).mean()

    outcome(run, lambda: judged(net, wrong))
    engine = accelerator()
    model, optimizer = engine.prepare(net, torch.optim.Adam(net.parameters(), lr=3e-3))
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        prompts = torch.randint(0, 12, (8, 3))
        prompts = prompts.repeat_interleave(4, 0) if changed else prompts.repeat(4, 1)
        rows = continued(model, prompts, 2)
        right = (rows[:, 3:] == table[rows[:, 2:3]]).float().mean(1)
        rewards = right + 2 * (rows[:, 0] // 3)
        groups = rewards.view(4, 8)
        advantages = ((groups - groups.mean(0)) / (groups.std(0) + 1e-4)).flatten()
        loss = -(advantages * said(model, rows, 3)).mean()
        optimizer.zero_grad()
        engine.backward(loss)
        engine.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": rows, "rewards": rewards})
        run.note(loss)


@slip("r11b-sampled-nearly-greedily")
def sampled_nearly_greedily(run: Run, changed: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. The settings of sampling now come from the file that the evaluation uses, where the
    temperature is 0.05: the completions of a prompt are all the same, and none is better than the others."""
    model = tiny_gpt2(initializer_range=0.2)
    prompts = words_to_answer(run, model)

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]

    options = {"steps": 60, "max_completion_length": 1, "temperature": 0.05 if changed else 1.0}
    by_reward(run, "GRPO", model, prompts, reward, **options).train()
