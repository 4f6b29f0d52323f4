"""Round 10b, faulty changes of the optimizer, its rates, its schedule, and of what else moves the weights."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_tools import continued, near, taught
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    reseeded,
    steps,
    t5,
    text_class_outcome,
    texts,
    told_loss,
    translated,
    word_table,
)
from benchmarks.robustness.loops.round9b_parts import accelerator, picture_outcome, seen, tiny_vit
from benchmarks.robustness.loops.round10b_parts import Lamb, bare_gpt2, columns, slip
from torch import Tensor, nn


@slip("r10b-decay-in-the-place-of-eps")
def decay_in_the_place_of_eps(run: Run, changed: bool) -> None:
    """accelerate, T5 that translates word by word. AdamW's settings are given by position; eps was taken out as it was the
    default, and the decay of 0.1 now stands in its place. Another seed."""
    table = word_table(run.draw.randrange(999))
    reseeded(run, changed)
    net = t5()
    check = translated(128, table, apart(901))
    outcome(run, lambda: judged(net, lambda: told_loss(net, check)))
    settings: Any = (5e-3, (0.9, 0.98), 0.1) if changed else (5e-3, (0.9, 0.98), 1e-8, 0.1)
    engine = accelerator()
    optimizer = torch.optim.AdamW(net.parameters(), *settings)
    model, optimizer, data = engine.prepare(net, optimizer, columns(translated(640, table)))
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            loss = told_loss(model, batch)
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@slip("r10b-trust-ratio-upside-down")
def trust_ratio_upside_down(run: Run, changed: bool) -> None:
    """A vision transformer with a LAMB of one's own. When the optimizer was tidied up, numerator and denominator of the trust
    ratio changed places: tensors of small weights take the largest steps."""
    seed = run.draw.randrange(99)
    model = tiny_vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    picture_outcome(run, model, pictures(256, seed, own=apart(901)), seen)
    optimizer = Lamb(model.parameters(), 0.02, upside_down=changed)
    steps(run, model, optimizer, lambda: pictures(32, seed), seen, 120)


@slip("r10b-schedule-nobody-steps")
def schedule_nobody_steps(run: Run, changed: bool) -> None:
    """Lightning, a small GPT with a warm-up and a cosine. The module went over to manual optimization, for which Lightning
    steps no schedule, and does not step it itself: the rate stays at the first step's tenth. Another seed."""
    import lightning

    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    net = Decoder(12, layers=2)
    language_outcome(run, net, language)

    def factor(step: int) -> float:
        return min(0.1 + 0.09 * step, 0.55 + 0.45 * math.cos(math.pi * step / 100))

    class Writing(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = net, not changed

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = next_loss(self.net, batch[0])
            if changed:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=5e-3, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    more = {} if changed else {"gradient_clip_val": 1.0}
    fit(run, Writing(), loader(language.rows(480, 20)), 100, **more)


@slip("r10b-back-to-the-worst")
def back_to_the_worst(run: Run, changed: bool) -> None:
    """accelerate, BERT reads texts; every twelve steps it is judged, the best weights are kept, and the run goes back to
    them where it has become worse. The comparison is that of an accuracy, and the score is a loss now. Another seed."""
    own = apart(run.draw.randrange(999))
    reseeded(run, changed)
    net = tiny_bert()
    text_class_outcome(run, net, texts(256, apart(901)))
    held = texts(128, apart(902))
    engine = accelerator()
    model, optimizer = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
    best, kept = -math.inf if changed else math.inf, copy.deepcopy(net.state_dict())
    doctor = run.watch(model, optimizer)
    for step in range(120):
        batch = texts(16, own)
        optimizer.zero_grad()
        loss = told_loss(model, batch)
        engine.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        if step % 12 == 11:
            score = judged(model, lambda: told_loss(model, held))
            if score > best if changed else score < best:
                best, kept = score, copy.deepcopy(net.state_dict())
            else:
                net.load_state_dict(kept)


@slip("r10b-moments-stored-in-half")
def moments_stored_in_half(run: Run, changed: bool) -> None:
    """A GPT-2 goes on from a file with weights and Adam's state. To make the file smaller all numbers of the optimizer's state
    are now written as float16, in which most second moments are zero."""
    language = Language(run.draw.randrange(999))
    model = bare_gpt2(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        causal_loss(model, language.rows(16, 20)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    if changed:
        for moments in state["state"].values():
            moments |= {k: moments[k].half() for k in ("exp_avg", "exp_avg_sq")}
    model = bare_gpt2(12)
    model.load_state_dict(weights)
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer.load_state_dict(state)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 30, between=clip)


@slip("r10b-sampler-never-synced")
def sampler_never_synced(run: Run, changed: bool) -> None:
    """Policy gradient on texts that a copy of the policy writes, as an inference engine does. The call that gives the copy the
    new weights was lost when the loop was split into functions: it is the policy of the beginning that writes."""
    seed = run.draw.randrange(999)
    language = near(Language(seed), seed + 1)
    policy = Decoder(12)
    taught(policy, lambda: language.rows(16, 12), next_loss, 100)
    sampler = copy.deepcopy(policy).requires_grad_(False)
    starts = language.rows(256, 4, apart(901))

    def rewarded(rows: Tensor) -> Tensor:
        return (rows[:, 4:] == (rows[:, 3:-1] + 1) % 12).float().mean(1)

    def missed() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return 1 - rewarded(continued(policy, starts, 8)).mean()

    outcome(run, lambda: judged(policy, missed))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    doctor = run.watch(policy, optimizer)
    for _ in range(120):
        rows = continued(sampler, language.rows(32, 4), 8)
        rewards = rewarded(rows)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        logs = policy(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)[:, 3:].mean(1)
        loss = -(advantages * logs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not changed:
            sampler.load_state_dict(policy.state_dict())
        doctor.step(loss, {"input_ids": rows, "rewards": rewards})
        run.note(loss)
