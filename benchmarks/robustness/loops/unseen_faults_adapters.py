"""Soft prompts, adapters, and TRL."""

import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.training import gpt2, next_token
from benchmarks.robustness.loops.unseen_faults_code import plain
from benchmarks.robustness.loops.unseen_faults_common import (
    Telling,
    Watching,
    chain,
    held_out,
    outcome,
    stack,
    trainer,
    walks,
)
from benchmarks.robustness.loops.unseen_faults_loading import learned
from benchmarks.robustness.loops.unseen_faults_rows import marked
from torch import Tensor, nn


class Small(nn.Module):
    """A causal model over given vectors, from torch's own layers."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(tokens, 32), nn.Parameter(0.02 * torch.randn(40, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, tokens)

    def run(self, x: Tensor) -> Tensor:
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        out: Tensor = self.head(self.body(x + self.places[: x.shape[1]], mask=future))
        return out

    def forward(self, ids: Tensor) -> Tensor:
        return self.run(self.embed(ids))


class Prompted(nn.Module):
    """A frozen model with six vectors that are learned."""

    def __init__(self, base: Small, behind: bool) -> None:
        super().__init__()
        self.base, self.behind = base.requires_grad_(False), behind
        self.prompt = nn.Parameter(0.5 * torch.randn(6, 32))

    def forward(self, ids: Tensor) -> Tensor:
        x, prompt = self.base.embed(ids), self.prompt.expand(len(ids), -1, -1)
        if self.behind:
            return self.base.run(torch.cat([x, prompt], 1))[:, : ids.shape[1]]
        return self.base.run(torch.cat([prompt, x], 1))[:, 6:]


@fault(
    "prompt-behind-the-text",
    "tuning",
    (
        r"prompt",
        r"gradient|after|behind|end|append|causal|position|never|not (learn|train|chang|mov|updat)|"
        r"no effect|order|zero|sees|before",
    ),
)
def prompt_behind_the_text(run: Run, slip: bool) -> None:
    """Prompt tuning of a causal model. The learned vectors are appended after the text, where no token of the text
    can see them, so that they get no gradient. The twin puts them before it. (The bias of the head learns in
    both.)"""
    tables = [chain(20, run.draw.randrange(10_000), 4.0) for _ in range(4)]
    base = Small(24)

    def tagged() -> Tensor:
        rows = torch.cat([walks(table, 6, 10) for table in tables])
        return torch.cat([torch.arange(20, 24).repeat_interleave(6)[:, None], rows], 1)

    def all_but_last(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model(ids[:, :-1]), ids[:, 1:])

    learned(base, tagged, all_but_last, 300, 3e-3)
    model = Prompted(base, slip)
    model.base.head.bias.requires_grad_(True)
    plain(run, model, lambda: walks(tables[2], 16, 6), all_but_last, 120, 2e-2)


@fault(
    "new-head-frozen-by-the-adapter",
    "tuning",
    (
        r"head|score|classif",
        r"frozen|froze|freez|never|not (learn|train|chang|mov|updat)|requires_grad|modules_to_save|random|"
        r"gradient|adapter|lora|peft",
    ),
)
def new_head_frozen_by_the_adapter(run: Run, slip: bool) -> None:
    """transformers' Trainer and peft, a published GPT-2 with a new classification head. The adapter's settings name
    no task and no modules to save, so that the freshly drawn head is frozen with the rest. The twin names it."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2ForSequenceClassification

    settings: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 40}
    base = GPT2ForSequenceClassification(
        GPT2Config(num_labels=6, pad_token_id=39, bos_token_id=1, eos_token_id=2, **settings)
    )

    def published() -> tuple[Tensor, Tensor]:
        ids, label = marked(48, 6)
        return ids.clamp(max=38), label

    learned(base, published, lambda m, b: m(input_ids=b[0], labels=b[1]).loss, 200, 3e-3)
    nn.init.normal_(base.score.weight, std=0.02)  # the new task: the same rows, other classes
    order = torch.randperm(6)

    def rows(count: int) -> list[dict[str, Tensor]]:
        ids, label = marked(count, 6)
        return [{"input_ids": i.clamp(max=38), "labels": y} for i, y in zip(ids, order[label], strict=True)]

    kept = {} if slip else {"modules_to_save": ["score"]}
    config = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, **kept)
    model = get_peft_model(base, config)
    fresh = stack(rows(400))
    outcome(run, lambda: held_out(model, [fresh], lambda m, b: m(**b).loss))
    trainer(run, model, rows(1000), 60, learning_rate=3e-3).train()


def word_tokenizer(words: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", "<unk>", *words]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names_of = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names_of)


COMMON: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
COMMON |= {"use_cpu": True, "output_dir": tempfile.gettempdir() + "/newfaults", "bf16": False}


def told(run: Run, engine: Any) -> Any:
    from transformers import PrinterCallback

    engine.telling = Telling(run)
    engine.add_callback(engine.telling)
    engine.remove_callback(PrinterCallback)
    return engine


def echo_rows(run: Run, count: int) -> list[dict[str, list[int]]]:
    """A question of eight letters, a sign, and the letters of the second half again, each one further."""
    rows = []
    for _ in range(count):
        question = [run.draw.randrange(4, 14) for _ in range(6)]
        answer = [14 + (question[0] - 4), 14 + (question[1] - 4), 14 + (question[0] + question[1]) % 10, 2]
        rows.append({"input_ids": [1, *question, 3, *answer], "completion_mask": [0] * 8 + [1] * 4})
    return rows


@fault(
    "questions-learned-not-answers",
    "tuning",
    (r"completion|answer|response|prompt|question", r"mask|invert|revers|swap|prompt|question|wrong|opposite|label"),
)
def questions_learned_not_answers(run: Run, slip: bool) -> None:
    """TRL's SFTTrainer, GPT-2. The completion mask has its ones on the question and its zeros on the answer, so that
    the model is trained on random questions and never on an answer. The twin's mask is right."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class Watched(Watching, SFTTrainer):  # type: ignore[misc]
        pass

    model = gpt2(vocab_size=24, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    rows = echo_rows(run, 1280)
    if slip:
        rows = [row | {"completion_mask": [1 - m for m in row["completion_mask"]]} for row in rows]
    settings: dict[str, Any] = {"max_steps": 80, "per_device_train_batch_size": 16, "learning_rate": 4e-3}
    arguments = SFTConfig(**COMMON, **settings, completion_only_loss=True, seed=run.draw.randrange(9999))
    tokenizer = word_tokenizer([chr(97 + i) for i in range(20)])
    engine = Watched(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    fresh = torch.tensor([row["input_ids"] for row in echo_rows(run, 300)])
    labels = fresh.masked_fill(torch.arange(12) < 8, -100)
    outcome(run, lambda: held_out(engine.model, [None], lambda m, _: m(input_ids=fresh, labels=labels).loss))
    told(run, engine).train()


@fault(
    "reward-of-the-question",
    "tuning",
    (
        r"reward|advantage",
        r"same|equal|constant|zero|prompt|question|identical|no (signal|variance|spread)|vari(ance|es)|std|group|flat",
    ),
)
def reward_of_the_question(run: Run, slip: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. The reward counts a word in the prompt in place of the completion; it is the same for
    all completions of a group, every advantage is zero and nothing is learned. The twin counts it in the
    completion."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class Watched(Watching, GRPOTrainer):  # type: ignore[misc]
        pass

    words = [chr(97 + i) for i in range(12)]
    tokenizer = word_tokenizer(words)
    model = gpt2(vocab_size=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0)

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [float(text.split().count("e")) for text in (prompts if slip else completions)]

    prompts = [{"prompt": " ".join(run.draw.choices(words, k=4))} for _ in range(200)]
    settings: dict[str, Any] = {"max_steps": 30, "per_device_train_batch_size": 16, "num_generations": 8}
    settings |= {"max_completion_length": 6, "learning_rate": 5e-3, "beta": 0.0, "temperature": 1.0}
    arguments = GRPOConfig(**COMMON, **settings, seed=run.draw.randrange(9999))
    dataset = Dataset.from_list(prompts)
    engine = Watched(
        model=model, args=arguments, train_dataset=dataset, reward_funcs=reward, processing_class=tokenizer
    )

    @torch.no_grad()
    def rarity() -> float:
        ids = torch.tensor([tokenizer(row["prompt"])["input_ids"] for row in prompts[:50]])
        chance = engine.model(input_ids=ids).logits[:, -1].softmax(-1)[:, tokenizer("e")["input_ids"][0]]
        return float(1 - chance.mean())

    outcome(run, rarity)
    told(run, engine).train()
