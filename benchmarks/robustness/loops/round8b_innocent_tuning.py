"""Round 8b, innocent changes of tuning and preference training."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    dpo_loss,
    llama,
    log_probabilities,
    preferred,
    steps,
)
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r8-reference-stored")
def reference_stored(run: Run, changed: bool) -> None:
    """Preferences by DPO: the frozen reference was asked at every step; its log probabilities are now computed beforehand,
    and stand in the batch."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    taught(model, lambda: language.rows(16, 12), next_loss, 60)
    frozen = copy.deepcopy(model).requires_grad_(False)

    def margins(m: nn.Module, good: Tensor, bad: Tensor) -> Tensor:
        return log_probabilities(m, good, 4) - log_probabilities(m, bad, 4)

    good, bad = preferred(language, 192, apart(run.draw.randrange(999)))
    check = preferred(language, 256, apart(1))
    with torch.no_grad():
        stored, stored_check = margins(frozen, good, bad), margins(frozen, *check)
    outcome(run, lambda: judged(model, lambda: dpo_loss(margins(model, *check), stored_check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = run.watch(model, optimizer)
    for step in range(72):
        rows = torch.arange(16) + step % 12 * 16
        batch = {"chosen": good[rows], "rejected": bad[rows]}
        if changed:
            batch["reference"] = reference = stored[rows]
        else:
            with torch.no_grad():
                reference = margins(frozen, good[rows], bad[rows])
        loss = dpo_loss(margins(model, good[rows], bad[rows]), reference)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Judge(nn.Module):
    """One number for a row of tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block, self.score = nn.Embedding(12, 32), Block(32, causal=False, drop=0.1), nn.Linear(32, 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.score(self.block(self.tokens(ids)).mean(1)).squeeze(1)
        return out


@innocent("r8-both-answers-in-one-pass")
def both_answers_in_one_pass(run: Run, changed: bool) -> None:
    """A reward model with dropout: liked and disliked answers went through it one after the other, now in one pass, which
    draws dropout in another order."""
    language = Language(run.draw.randrange(999))
    model = Judge()
    check = preferred(language, 256, apart(1))

    def loss(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        good, bad = m(torch.cat(batch)).chunk(2) if changed else map(m, batch)
        return -F.logsigmoid(good - bad).mean()

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps(run, model, optimizer, lambda: preferred(language, 24), loss, 70)


class LowRank(nn.Module):
    """A frozen projection and a change of rank four, begun as PEFT begins it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + 2 * self.b(self.a(x))
        return out


@innocent("r8-adapters-by-peft")
def adapters_by_peft(run: Run, changed: bool) -> None:
    """A Llama is tuned through low-rank changes of its queries and values, of one's own making, then PEFT's, of the same rank
    and scale; they are drawn in another order."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(999)
    language = Language(seed)
    model: Any = llama()
    taught(model, lambda: language.rows(16, 16), causal_loss, 80)
    other = near(language, seed + 1, 0.3)
    if changed:
        torch.manual_seed(seed)
        settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
        model = get_peft_model(model, LoraConfig(**settings))
    else:
        model.requires_grad_(False)
        for layer in model.model.layers:
            layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
            layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    causal_outcome(run, model, other)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    steps(run, model, optimizer, lambda: other.rows(16, 20), causal_loss, 80)


@innocent("r8-frozen-by-leaving-out")
def frozen_by_leaving_out(run: Run, changed: bool) -> None:
    """A GPT-2's word and position vectors stay as they were published: by requires_grad = False, then by leaving them out of
    the optimizer, so that they have gradients that nobody uses. Nothing is clipped."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    model: Any = tiny_gpt2(12, pad_token_id=None, n_layer=2, tie_word_embeddings=False)
    taught(model, lambda: language.rows(16, 16), causal_loss, 60)
    other = near(language, seed + 1, 0.3)
    causal_outcome(run, model, other)
    still = [*model.transformer.wte.parameters(), *model.transformer.wpe.parameters()]
    if not changed:
        for p in still:
            p.requires_grad_(False)
    kept = {id(p) for p in still}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if id(p) not in kept], lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = other.rows(16, 20)
        model.zero_grad()
        loss = causal_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
