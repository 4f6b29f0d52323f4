"""Round 9, part a, changed loops with a mistake in the model: its attention, its axes, its weights at the start."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round9a_parts import Llama, PortedGPT, Relative
from benchmarks.robustness.loops.round9a_tools import (
    MODEL,
    accelerated,
    gpt2,
    learned,
    llama,
    other_seed,
    plain,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@fault(
    "r9a-square-matrix-not-transposed",
    MODEL,
    (
        r"proj|attention|attn|weight|checkpoint|load|init|start|first step|step 0|pretrained|output",
        r"transpos|differ|load|wrong|start|higher|begin|weight|changed|first|not the same|other|worse|proj|mix|larger",
    ),
)
def square_matrix_not_transposed(run: Run, changed: bool) -> None:
    """Plain loop, fine-tuning of a GPT of one's own with the weights of transformers' GPT-2, whose matrices lie the other
    way. attn.c_proj has dropped out of the list of those to transpose; it is square, so that nothing breaks."""
    seed = run.draw.randrange(999)
    words, near = Language(seed, 12), Language(seed, 12)
    near.one = near.one + 0.5 * torch.randn(12, 12, generator=apart(seed + 1))
    old = gpt2(12, bos_token_id=None, eos_token_id=None)
    learned(
        old,
        lambda: words.rows(16, 24),
        lambda r: next_loss(lambda ids: old(input_ids=ids).logits, r),
        200,  # type: ignore[arg-type]
    )
    turned = ["attn.c_attn.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"]
    if not changed:
        turned.append("attn.c_proj.weight")
    model = PortedGPT(12)
    with torch.no_grad():
        given, own = old.transformer.state_dict(), model.state_dict()
        for name, tensor in given.items():
            own[name].copy_(tensor.T if name.endswith(tuple(turned)) else tensor)
    language_outcome(run, model, near)
    plain(run, model, lambda: near.rows(16, 24), lambda rows: next_loss(model, rows), 60, rate=5e-4)


def letters(count: int, own: torch.Generator, tables: Tensor) -> Tensor:
    """Rows of eight: a first word says which of four tables leads from each word to the next."""
    out = torch.randint(0, 10, (count, 8), generator=own)
    kind = torch.randint(0, 4, (count,), generator=own)
    for t in range(2, 8):
        follows = tables[kind, out[:, t - 1]]
        out[:, t] = torch.where(torch.rand(count, generator=own) < 0.9, follows, out[:, t])
    out[:, 0] = 10 + kind
    return 4 + out


@fault(
    "r9a-mask-of-ones-over-packed-rows",
    MODEL,
    (
        r"attention|mask|pack|document|border|bound|position",
        r"pack|cross|border|bound|document|other|leak|mask|ones|block|see|attend|all|new|reset|differ|entropy|far",
    ),
)
def mask_of_ones_over_packed_rows(run: Run, changed: bool) -> None:
    """transformers' Trainer, Llama over packed rows, whose position_ids begin anew with every text; from these the model
    knows the borders. The new collator also returns an attention_mask of ones, with which it no longer looks for them:
    texts read one another."""
    own = apart(run.draw.randrange(999))
    tables = torch.stack([torch.randperm(10, generator=own) for _ in range(4)])
    train, check = letters(1920, own, tables), letters(200, own, tables)
    model = llama(18)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        ids = torch.stack(rows).view(len(rows) // 4, 32)
        places = torch.arange(8).repeat(4).expand(len(ids), -1)
        batch = {"input_ids": ids, "position_ids": places, "labels": ids.masked_fill(places == 0, -100)}
        if changed:
            batch["attention_mask"] = torch.ones_like(ids)
        return batch

    options: dict[str, Any] = {"per_device_train_batch_size": 48, "remove_unused_columns": False}
    hf_trainer(run, model, list(train), 150, more={"data_collator": collate}, **options).train()


class Reader(nn.Module):
    """PyTorch's encoder over a token of its own and the words; that token's state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(16, 32), nn.Parameter(torch.randn(32) / 4)
        self.places = nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(ids), 1, -1), self.words(ids)], 1)
        x = x + self.places(torch.arange(x.shape[1]))
        out: Tensor = self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])
        return out


@fault(
    "r9a-mask-of-the-other-meaning",
    MODEL,
    (
        r"mask|attention|attend|pad",
        r"invert|opposite|pad|mask|meaning|other way|revers|only|ignore|word|flip|polarity|attend|true|false|differ|share",
    ),
)
def mask_of_the_other_meaning(run: Run, changed: bool) -> None:
    """Plain loop, PyTorch's own encoder. The mask of the new tokenizer is 1 where there is a word; src_key_padding_mask is
    true where there is none, so that attention sees nothing but padding. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = documents(480, own), documents(192, own)
    other_seed(changed)
    model = Reader()

    def ready(ids: Tensor, keep: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids, keep = F.pad(ids, (0, 2)), F.pad(torch.cat([torch.ones_like(keep[:, :1]), keep], 1), (0, 2))
        return ids, keep if changed else ~keep, y

    class_outcome(run, model, ready(*check))
    batches = endless(loader(*ready(*train)))
    plain(run, model, lambda: next(batches), lambda b: F.cross_entropy(model(b[0], b[1]), b[2]), 120, rate=3e-3)


def spikes(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 10, 2): a noisy number and a flag at two moments; the class is whether those two have the same sign."""
    x = 0.3 * torch.randn(count, 10, 2, generator=own)
    x[..., 1] = 0
    at = torch.rand(count, 10, generator=own).topk(2, 1).indices
    sign = 2.0 * torch.randint(0, 2, (count, 2), generator=own) - 1
    x[..., 0].scatter_(1, at, sign)
    x[..., 1].scatter_(1, at, 1.0)
    return x, (sign.prod(1) > 0).long()


class Sensors(nn.Module):
    """An encoder of series, and the mean over time."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, "gelu", norm_first=True, **options)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.enter(x)).mean(1))
        return out


@fault(
    "r9a-batch-first-forgotten",
    MODEL,
    (
        r"attention|batch|row|axis|example|encoder|layer|attn",
        r"batch|across|other (row|example)|axis|dimension|leak|mix|depend|time|transpos|entropy|rows|16|see|attend|shape|between",
    ),
)
def batch_first_forgotten(run: Run, changed: bool) -> None:
    """Lightning, an encoder of series. batch_first=True was lost when the layer's options went into a file: attention goes
    over the rows of the batch at each moment, no longer over time."""
    own = apart(run.draw.randrange(999))
    train, check = spikes(960, own), spikes(256, own)
    options: dict[str, Any] = {} if changed else {"batch_first": True}
    model = Sensors(**options)
    class_outcome(run, model, check)
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    told = lit(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), rule)
    fit(run, told, loader(*train, size=32), 240, gradient_clip_val=1.0)


def refrains(count: int, own: torch.Generator) -> Tensor:
    """Rows of 25 words; each word is the one five before it, now and then another."""
    out = torch.randint(0, 12, (count, 25), generator=own)
    for t in range(5, 25):
        out[:, t] = torch.where(torch.rand(count, generator=own) < 0.95, out[:, t - 5], out[:, t])
    return out


@fault(
    "r9a-heads-by-view",
    MODEL,
    (
        r"attention|head|attn|view|reshape|score|block",
        r"view|reshape|transpos|head|axis|scrambl|mix|see|attend|reach|context|past|far|shape|layout|differ|entropy|fewer|local|less|shorter|changed",
    ),
)
def heads_by_view(run: Run, changed: bool) -> None:
    """accelerate, a Llama of one's own. Queries, keys and values were viewed as (batch, time, heads, width) and transposed;
    the new lines view them as (batch, heads, time, width) at once, and back: a head has a quarter of the row. Another seed."""
    own = apart(run.draw.randrange(999))
    rows, check = refrains(640, own), refrains(128, own)
    other_seed(changed)
    model = Llama(12, heads=4, viewed=changed)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    data: Any = DataLoader(rows, 16, shuffle=True)  # type: ignore[arg-type]
    accelerated(run, model, data, next_loss, 6)


def marked(count: int, table: Tensor, own: torch.Generator) -> dict[str, Tensor]:
    """Rows of 12 words; the mark after a word follows from it and from the next one."""
    ids = torch.randint(0, 12, (count, 12), generator=own)
    marks = F.pad(table[ids[:, :-1], ids[:, 1:]], (0, 1), value=-100)
    return {"input_ids": ids, "labels": marks}


@fault(
    "r9a-buckets-of-one-direction",
    MODEL,
    (
        r"relative|position|bias|bucket|attention|direction|order",
        r"direction|bucket|future|right|after|one side|bias|same|fewer|gradient|zero|unused|order|distinguish|sign|clamp|uneven|no gradient|half|entropy|differ",
    ),
)
def buckets_of_one_direction(run: Run, changed: bool) -> None:
    """transformers' Trainer, an encoder like T5's that puts marks after words. The function of the relative buckets got a parameter
    `bidirectional`, off by default as for decoders: all words to the right share one bucket. Another seed."""
    own = apart(run.draw.randrange(999))
    table = torch.randint(0, 4, (12, 12), generator=own)
    train, check = marked(480, table, own), marked(160, table, own)
    other_seed(changed)
    model = Relative(12, marks=4, bidirectional=not changed)
    outcome(run, lambda: judged(model, lambda: model(**check)["loss"]))
    rows = [{"input_ids": a, "labels": b} for a, b in zip(train["input_ids"], train["labels"], strict=True)]
    options: dict[str, Any] = {"seed": run.draw.randrange(9999) + (1 if changed else 0), "learning_rate": 3e-3}
    hf_trainer(run, model, Examples(rows), 200, **options).train()
