"""What the changed loops of the ninth round, part a, share: ways to train, small networks of libraries, tasks.

The category of a fault is the part of a training step in which the change lies:
data      what goes into the model: ids, features, masks, kinds of tokens, the order of rows;
labels    which labels are taught, and which are left out;
model     architecture, weights at the start, forward pass;
loss      formula and reduction.

round9a_proofs.json repeats by `python -m benchmarks.robustness.prove round9a`, with `--seeds` as many as a proof has.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Language
from torch import Tensor, nn
from torch.nn import functional as F

DATA, LABELS, MODEL, LOSS = "data", "labels", "model", "loss"

PAD, BOS, EOS, MASK = 0, 1, 2, 3


def warm_cosine(optimizer: Any, steps: int) -> Any:
    """Ten steps up, then half a cosine down to a tenth."""

    def factor(step: int) -> float:
        return min((step + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * min(step / steps, 1.0)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def plain(
    run: Run,
    model: nn.Module,
    batches: Callable[[], Any],
    loss: Callable[[Any], Tensor],
    steps: int,
    rate: float = 5e-3,
    decay: float = 0.01,
) -> None:
    """A plain loop: AdamW, warm-up and cosine, clipping at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    schedule = warm_cosine(optimizer, steps)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    model.train()
    for _ in range(steps):
        batch = batches()
        optimizer.zero_grad(set_to_none=True)
        value = loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, batch)
        schedule.step()
        run.note(value)


def accelerated(
    run: Run, net: nn.Module, data: Any, loss: Callable[[nn.Module, Any], Tensor], epochs: int, rate: float = 5e-3
) -> None:
    """accelerate's loop, clipping at 1."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01), data)
    doctor = run.watch(model, optimizer)
    model.train()
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            value = loss(model, batch)
            engine.backward(value)
            engine.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)


def other_seed(other: bool) -> None:
    """As when nobody keeps the seed."""
    if other:
        torch.manual_seed(torch.initial_seed() + 29)


def learned(model: nn.Module, batches: Callable[[], Any], loss: Callable[[Any], Tensor], steps: int) -> None:
    """Before the script begins: the weights that it starts from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(batches()).backward()
        optimizer.step()


# networks of transformers


def gpt2(words: int, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": words}
    settings |= {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "initializer_range": 0.08}
    settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**(settings | options)))


def llama_settings(words: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    settings |= {"vocab_size": words, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return settings | {"initializer_range": 0.1, "use_cache": False}


def llama(words: int, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**(llama_settings(words) | options)))


def bert(kind: str, **options: Any) -> Any:
    import transformers

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.1}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD}
    return getattr(transformers, kind)(transformers.BertConfig(**(settings | options)))


def vit(**options: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8}
    settings |= {"patch_size": 2, "intermediate_size": 64, "num_labels": 4, "num_channels": 1}
    settings |= {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(**(settings | options)))


def bart(words: int, **options: Any) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": words}
    settings |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64}
    settings |= {"decoder_ffn_dim": 64, "max_position_embeddings": 32, "dropout": 0.0, "init_std": 0.1}
    settings |= {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    return BartForConditionalGeneration(BartConfig(**(settings | options)))


def t5(words: int, **options: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    settings |= {"vocab_size": words, "dropout_rate": 0.0, "pad_token_id": PAD, "eos_token_id": EOS}
    settings |= {"decoder_start_token_id": PAD, "relative_attention_num_buckets": 16}
    return T5ForConditionalGeneration(T5Config(**(settings | options)))


def word_tokenizer(words: int) -> Any:
    """Words w4, w5, … and the four special tokens, without a token to pad with."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<mask>", *(f"w{i}" for i in range(4, words))]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


# tasks


def sentences(language: Language, count: int, own: torch.Generator, longest: int = 16) -> list[list[int]]:
    """Rows of 4 to `longest` words between <s> and </s>."""
    rows = language.rows(count, longest, own)
    sizes = torch.randint(4, longest + 1, (count,), generator=own)
    return [[BOS, *row[:n].tolist(), EOS] for row, n in zip(rows, sizes.tolist(), strict=True)]


def padded(rows: list[list[int]], fill: int = PAD, length: int = 0) -> tuple[Tensor, Tensor]:
    """(rows, longest) ids, padded on the right, and a mask, 1 where there is a word."""
    longest = max(length, *map(len, rows))
    ids = torch.tensor([row + [fill] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def translations(count: int, table: Tensor, own: torch.Generator, length: int = 8) -> tuple[Tensor, Tensor]:
    """Rows of words and their translation word by word, each closed by </s>."""
    source = torch.randint(4, 4 + len(table), (count, length), generator=own)
    end = torch.full((count, 1), EOS)
    return torch.cat([source, end], 1), torch.cat([table[source - 4], end], 1)


def waves(count: int, own: torch.Generator, shares: tuple[float, ...] = (0.8, 0.14, 0.06)) -> tuple[Tensor, Tensor]:
    """(count, 20, 2) noisy waves of three speeds, of which one is frequent."""
    y = torch.multinomial(torch.tensor(shares), count, True, generator=own)
    speed = torch.tensor([0.45, 0.6, 0.75])[y, None]
    phase = 6.28 * torch.rand(count, 1, generator=own)
    angle = speed * torch.arange(20) + phase
    x = torch.stack([angle.sin(), angle.cos()], -1)
    return x + 0.4 * torch.randn(x.shape, generator=own), y


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.inner(input_ids=ids).logits
        return out


class Recurrent(nn.Module):
    """A GRU whose last state is read."""

    def __init__(self, width: int = 24, classes: int = 3) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[1][-1])
        return out


class Denoiser(nn.Module):
    """The noise in a picture of 64 numbers, from the picture and the time."""

    def __init__(self, times: int, width: int = 96) -> None:
        super().__init__()
        self.times, self.enter = nn.Embedding(times, width), nn.Linear(64, width)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.leave = nn.Linear(width, 64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.enter(x) + self.times(t)
        for layer in self.inner:
            h = h + layer(F.silu(h))
        out: Tensor = self.leave(F.silu(h))
        return out


def noised(x: Tensor, noise: Tensor, t: Tensor, kept: Tensor) -> Tensor:
    """`kept`: how much of the picture's variance is there at each time."""
    a = kept[t][:, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise
