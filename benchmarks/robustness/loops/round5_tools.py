"""What the fifth round's loops share: small tasks, small networks, and a measure of what was learned."""

import itertools
import math
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from torch import Tensor, nn
from torch.nn import functional as F


def outcome(run: Run, measure: Callable[[], float]) -> None:
    """Keep how to measure, after the loop, what it was for (lower is better); only a proof calls it."""
    vars(run)["outcome"] = measure
    if run.proves:
        with torch.random.fork_rng():
            vars(run)["before"] = measure()


def judged(model: nn.Module, measure: Callable[[], Any]) -> float:
    """A measure in evaluation mode, without gradients; the modes are put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        value = float(measure())
    for module, mode in modes:
        module.training = mode
    return value


def apart(seed: int) -> torch.Generator:
    """A generator of the user's own, for data that must not depend on the training."""
    return torch.Generator().manual_seed(seed)


def train(
    run: Run,
    model: nn.Module,
    optimizer: Any,
    batch: Callable[[], Any],
    loss: Callable[[nn.Module, Any], Tensor],
    steps: int,
    scheduler: Any = None,
    clip: float | None = None,
) -> None:
    """A plain loop."""
    doctor = run.watch(model, optimizer, **({"scheduler": scheduler} if scheduler else {}))
    run.preflight(doctor, batch(), loss)
    for _ in range(steps):
        data = batch()
        optimizer.zero_grad()
        value = loss(model, data)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        doctor.step(value, data)
        if scheduler:
            scheduler.step()
        run.note(value)


# tasks


class Language:
    """Rows of tokens in which the next one depends on the last two, each by a table of its own."""

    def __init__(self, seed: int, words: int = 12, sharp: float = 1.6, first: int = 0) -> None:
        own = apart(seed)
        self.words, self.first = words, first
        self.one = sharp * torch.randn(words, words, generator=own)
        self.two = sharp * torch.randn(words, words, generator=own)

    def rows(self, count: int, length: int, own: torch.Generator | None = None) -> Tensor:
        out = torch.randint(0, self.words, (count, length), generator=own)
        for t in range(2, length):
            chance = (self.one[out[:, t - 1]] + self.two[out[:, t - 2]]).softmax(-1)
            out[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
        return out + self.first


def pictures(count: int, seed: int = 0, channels: int = 1, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 8 by 8 in [0, 1]: one of four patterns, somewhat moved, in noise."""
    templates = (torch.randn(4, channels, 8, 8, generator=apart(seed + 77)) > 0.4).float()
    classes = torch.randint(0, 4, (count,), generator=own)
    moved = torch.randint(0, 2, (count,), generator=own)
    clean = torch.stack([templates[c].roll(int(m), -1) for c, m in zip(classes, moved, strict=True)])
    return (0.25 + 0.5 * clean + 0.2 * torch.randn(clean.shape, generator=own)).clamp(0, 1), classes


def table(count: int, seed: int = 0, own: torch.Generator | None = None, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Six columns and a number that depends on them, not only linearly."""
    w = torch.randn(6, generator=apart(seed + 5))
    x = torch.randn(count, 6, generator=own)
    y = x @ w + torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    return x, y + noise * torch.randn(count, generator=own)


def straight(
    count: int, seed: int = 0, own: torch.Generator | None = None, noise: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Six columns and a weighted sum of them, in noise."""
    w = torch.randn(6, generator=apart(seed + 6))
    x = torch.randn(count, 6, generator=own)
    return x, 2 * x @ (w / w.norm()) + noise * torch.randn(count, generator=own)


def documents(
    count: int, own: torch.Generator | None = None, length: int = 12, classes: int = 3
) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded rows (0 is padding) of words 1..15; the class is the group of words that is more frequent."""
    y = torch.randint(0, classes, (count,), generator=own)
    sizes = torch.randint(4, length + 1, (count,), generator=own)
    sizes[0] = length
    from_group = torch.rand(count, length, generator=own) < 0.55
    group = 1 + y[:, None] * 5 + torch.randint(0, 5, (count, length), generator=own)
    x = torch.where(from_group, group, torch.randint(1, 16, (count, length), generator=own))
    mask = torch.arange(length)[None] < sizes[:, None]
    return x * mask, mask, y


# networks


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes[:-1]):
        parts += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(sizes[-2], sizes[-1]))


class Attention(nn.Module):
    """Multi-head attention in its usual lines."""

    def __init__(self, width: int, heads: int = 2, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / self.heads)
        if self.causal:
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], -1e9)
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return out


class Block(nn.Module):
    """Before each part a norm, around each a residual."""

    def __init__(self, width: int, heads: int = 2, causal: bool = True, drop: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.feed = mlp(width, 2 * width, width, act=nn.GELU)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x), keep))
        out: Tensor = x + self.drop(self.feed(self.norm2(x)))
        return out


class Decoder(nn.Module):
    """A small GPT."""

    def __init__(self, words: int, width: int = 32, layers: int = 1, length: int = 48, drop: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, drop=drop) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head(self.norm(x))
        return out


class Classifier(nn.Module):
    """A small BERT with the mean over what is not padding."""

    def __init__(self, words: int = 16, classes: int = 3, width: int = 32, drop: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.block = Block(width, causal=False, drop=drop)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep)
        share = keep.float()[..., None]
        out: Tensor = self.head((x * share).sum(1) / share.sum(1))
        return out


def cnn(channels: int = 1, classes: int = 4, norm: bool = True, drop: float = 0.0) -> nn.Sequential:
    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*layer(channels, 8), *layer(8, 16), nn.Flatten(), nn.Dropout(drop), nn.Linear(64, classes))


def next_loss(model: nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def language_outcome(run: Run, model: nn.Module, language: Language, length: int = 24) -> None:
    check = language.rows(96, length, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))


def class_outcome(run: Run, model: nn.Module, data: tuple[Any, ...], *more: Any) -> None:
    """Cross-entropy on rows kept apart."""
    *inputs, y = data
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*inputs), y)))


def number_outcome(run: Run, model: nn.Module, data: tuple[Tensor, Tensor], log: bool = False) -> None:
    """The share of the variance that is not explained, on rows kept apart, or its logarithm."""
    x, y = data

    def share() -> Tensor:
        value = F.mse_loss(model(x).flatten(), y.flatten()) / y.var()
        return value.log() if log else value

    outcome(run, lambda: judged(model, share))


# trainers


def loader(*tensors: Tensor, size: int = 16, shuffle: bool = True, **options: Any) -> Any:
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*tensors), size, shuffle=shuffle, **options)


def endless(data: Any) -> Any:
    """The batches of a loader, epoch after epoch."""
    while True:
        yield from data


class Examples(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def examples(**columns: Tensor) -> Examples:
    return Examples([{k: v[i] for k, v in columns.items()} for i in range(len(next(iter(columns.values()))))])


def watching(run: Run, base: Any) -> tuple[Any, Any]:
    """A subclass of a Trainer that remembers a step's batches and losses, and the callback that tells of them."""
    from transformers import TrainerCallback

    kept: dict[str, list[Any]] = {"losses": [], "batches": []}

    class Told(base):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Tensor:
            kept["batches"].append(dict(inputs) if hasattr(inputs, "items") else inputs)
            loss: Tensor = super().training_step(model, inputs, *args, **options)
            kept["losses"].append(loss.detach())
            return loss

    class Telling(TrainerCallback):  # type: ignore[misc]
        doctor: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.doctor = run.watch(given["model"], given["optimizer"], scheduler=given["lr_scheduler"])

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            loss, batches = torch.stack(kept["losses"]).sum(), list(kept["batches"])
            self.doctor.step(loss, batches[0] if len(batches) == 1 else batches)
            run.note(loss)
            kept["losses"].clear()
            kept["batches"].clear()

    return Told, Telling()


def hf_arguments(run: Run, steps: int, kind: Any = None, **options: Any) -> Any:
    from transformers import TrainingArguments

    settings: dict[str, Any] = {"per_device_train_batch_size": 16, "learning_rate": 5e-3, "max_steps": steps}
    settings |= {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    settings |= {"use_cpu": True, "seed": run.draw.randrange(9999), "output_dir": tempfile.gettempdir() + "/round5"}
    return (kind or TrainingArguments)(**(settings | options))


def hf_trainer(run: Run, model: Any, data: Any, steps: int, base: Any = None, **options: Any) -> Any:
    """A watched Trainer; `more` goes to the Trainer, everything else to its arguments."""
    from transformers import PrinterCallback, Trainer

    more = options.pop("more", {})
    kind, telling = watching(run, base or Trainer)
    out = kind(model=model, args=hf_arguments(run, steps, **options), train_dataset=data, **more)
    out.add_callback(telling)
    out.remove_callback(PrinterCallback)
    return out


def tiny_bert(classes: int = 3, **options: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 16, "num_labels": classes}
    return BertForSequenceClassification(BertConfig(**(settings | options)))


def tiny_gpt2(words: int = 16, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": words}
    settings |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**(settings | options)))


def fit(run: Run, module: Any, data: Any, steps: int, **options: Any) -> None:
    """Lightning's Trainer, watched through a callback."""
    import logging
    import warnings

    import lightning

    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    class Teller(lightning.Callback):
        doctor: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            schedule = trainer.lr_scheduler_configs
            more = {"scheduler": schedule[0].scheduler} if schedule else {}
            self.doctor = run.watch(pl_module, trainer.optimizers[0], **more)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.doctor.step(outputs["loss"], batch)
            run.note(outputs["loss"])

    settings: dict[str, Any] = {"max_steps": steps, "accelerator": "cpu", "logger": False}
    settings |= {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(**(settings | options), callbacks=[Teller()]).fit(module, data)


def lit(net: nn.Module, loss: Callable[[nn.Module, Any], Tensor], optimizers: Callable[[Any], Any]) -> Any:
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return optimizers(self.net)

    return Lit()
