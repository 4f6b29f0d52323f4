"""What the loops of round 7b share beyond the rounds before: texts, updates, measures, and a policy trained by rewards."""

import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    hf_arguments,
    judged,
    mlp,
    next_loss,
    outcome,
    watching,
)
from torch import Tensor, nn

OPTIMIZER, LOADING = "optimizer, schedule, clipping", "initialisation, loading, resuming"
EVALUATION, TUNING = "evaluation, averages, a trainer's state", "alignment, fine-tuning, accumulation"


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


def taught(model: nn.Module, batch: Callable[[], Any], loss: Any, steps: int, rate: float = 5e-3) -> None:
    """What was trained before, by somebody else."""
    optimizer = adam(model, rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch()).backward()
        optimizer.step()


def near(language: Language, seed: int, share: float = 0.5) -> Language:
    """Another language of the same words, not far from the first."""
    other = Language(seed, language.words)
    other.one, other.two = (
        math.sqrt(1 - share) * a + math.sqrt(share) * b
        for a, b in ((language.one, other.one), (language.two, other.two))
    )
    return other


def said(model: nn.Module, rows: Tensor, start: int = 1) -> Tensor:
    """The log probability of each row's tokens from `start` on."""
    scores = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
    return scores[:, start - 1 :].sum(1)


@torch.no_grad()
def continued(model: nn.Module, rows: Tensor, count: int) -> Tensor:
    """Rows with `count` sampled tokens behind them."""
    for _ in range(count):
        rows = torch.cat([rows, torch.multinomial(model(rows)[:, -1].softmax(-1), 1)], 1)
    return rows


def update(run: Run, doctor: Any, optimizer: Any, loss: Tensor, batch: Any) -> None:
    """One update, told."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    doctor.step(loss, batch)
    run.note(loss)


def text_outcome(run: Run, model: nn.Module, language: Language, length: int = 24) -> None:
    check = language.rows(96, length, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))


def corridor(model: nn.Module, gain: float, size: int = 8) -> Callable[[], float]:
    """How far action values are from those of walking right along `size` places to a reward, discount 0.9."""
    truth = torch.tensor([gain * 0.9 ** (size - 1 - s) for s in range(size)])
    return lambda: judged(model, lambda: (model(torch.eye(size))[:, 1] - truth).abs().mean())


def q_network(size: int = 8) -> nn.Sequential:
    return mlp(size, 32, 2)


def words_to_answer(run: Run, model: nn.Module) -> list[dict[str, str]]:
    """Prompts of one word with the word that answers it, and the measure: how unlikely the answers are."""
    key = torch.randperm(6, generator=apart(run.draw.randrange(999))) + 4
    ids = torch.arange(6)[:, None] + 4

    def unlikely() -> Tensor:
        return 1 - model(input_ids=ids).logits[:, -1].softmax(1)[ids[:, 0] - 4, key].mean()

    outcome(run, lambda: judged(model, unlikely))
    asked = [run.draw.randrange(6) for _ in range(400)]
    return [{"prompt": f"w{i + 4}", "answer": f"w{int(key[i])}"} for i in asked]


def by_reward(run: Run, kind: str, model: nn.Module, prompts: list[dict[str, str]], reward: Any, **options: Any) -> Any:
    """TRL's trainer of a policy by rewards of sampled completions, watched."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    told, telling = watching(run, getattr(trl, f"{kind}Trainer"))
    settings: dict[str, Any] = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 3}
    settings |= {"beta": 0.0, "learning_rate": 5e-3, "bf16": False, "gradient_checkpointing": False} | options
    arguments = hf_arguments(run, settings.pop("steps"), getattr(trl, f"{kind}Config"), **settings)
    data, words = datasets.Dataset.from_list(prompts), word_tokenizer(16)
    out = told(model=model, args=arguments, train_dataset=data, reward_funcs=reward, processing_class=words)
    out.add_callback(telling)
    out.remove_callback(transformers.PrinterCallback)
    return out
