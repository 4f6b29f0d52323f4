"""What the loops share: optimizers and schedules as people set them, one update, the usual loop."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.optimizers import groups
from benchmarks.robustness.loops.text import BOS, EOS, PAD, VOCABULARY, corpus, crops
from torch import Tensor, nn
from torch.nn import functional as F


def adamw(model: nn.Module, lr: float = 2e-3, decay: float = 0.1) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(model, decay), lr=lr, betas=(0.9, 0.95))


def warm_cosine(optimizer: Any, steps: int, warmup: int = 8) -> Any:
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def update(
    run: Run, doctor: Any, optimizer: Any, loss: Tensor, batch: Any, clip: tuple[nn.Module, float] | None = None
) -> None:
    """The usual end of a step: clear, backward, clip, update, tell the doctor."""
    optimizer.zero_grad()
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(clip[0].parameters(), clip[1])
    optimizer.step()
    doctor.step(loss, batch)
    run.note(loss)


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain_loop(
    run: Run, model: nn.Module, optimizer: Any, steps: int = 80, warmup: int = 8, clip: float = 1.0, length: int = 32
) -> None:
    """The loop of most of these: random crops, cross-entropy, clipping, warmup and cosine."""
    tokens = corpus(run.draw.randrange(1000))
    scheduler = warm_cosine(optimizer, steps, warmup)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, crops(tokens, 8, length), lambda m, b: next_token(m(b[0]), b[1]))
    for _ in range(steps):
        x, y = crops(tokens, 8, length)
        loss = next_token(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        doctor.step(loss, (x, y))
        scheduler.step()
        run.note(loss)


def gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY} | options
    return GPT2LMHeadModel(GPT2Config(bos_token_id=BOS, eos_token_id=EOS, **settings))


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    settings |= {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return LlamaForCausalLM(LlamaConfig(**(settings | options)))


def pretrain(model: nn.Module, tokens: Tensor, steps: int = 80, call: Any = None) -> None:
    """Unwatched: what a fine-tuning starts from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = crops(tokens)
        loss = next_token(call(x) if call else model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def log_likelihood(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Of each row, without its padding."""
    scores = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (scores * mask[:, 1:]).sum(1)
