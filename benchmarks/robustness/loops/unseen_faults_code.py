"""The model's own code: positions, recurrences, masks, routers, skips."""

from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import next_token, warm_cosine
from benchmarks.robustness.loops.unseen_faults_common import Lit, fit, held_out, outcome, stack, trainer
from benchmarks.robustness.loops.unseen_faults_rows import class_loss, marked
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def plain(run: Run, model: nn.Module, draw: Any, loss_of: Any, steps: int, rate: float = 3e-3) -> None:
    """The usual loop over freshly drawn batches, its measure the loss on others."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scheduler = warm_cosine(optimizer, steps)
    fresh = [draw() for _ in range(4)]
    if "outcome" not in vars(run):
        outcome(run, lambda: held_out(model, fresh, loss_of))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, draw(), loss_of)
    for _ in range(steps):
        batch = draw()
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, batch)
        run.note(loss)


def by_halves(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def by_neighbours(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    turned = [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()]
    return torch.stack(turned, -1).flatten(-2)


class Rotated(nn.Module):
    """A decoder layer of two heads with rotary positions, without a norm on queries and keys."""

    def __init__(self, width: int, mixed: bool) -> None:
        super().__init__()
        self.mixed, self.size = mixed, width // 2
        self.norm_a, self.norm_b = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        rates = 100.0 ** (-torch.arange(self.size // 2) / (self.size // 2))
        angles = torch.arange(length)[:, None] * rates
        h = self.norm_a(x)
        q, k, v = (p(h).view(rows, length, 2, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = by_halves(q, angles), (by_neighbours if self.mixed else by_halves)(k, angles)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(rows, length, width))
        h = self.norm_b(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


@fault(
    "two-rotary-conventions",
    "code",
    (r"rotary|rope|rotat|position", r"quer|key|interleav|half|halves|pair|convention|relative|mismatch|differ"),
)
def two_rotary_conventions(run: Run, slip: bool) -> None:
    """A Llama-like decoder. Queries are rotated by halves of the head, keys by neighbouring pairs, so that their
    product is no function of the distance alone. The task (what stood seven places before) needs the distance. Twin:
    both by halves."""
    distance = run.draw.randint(6, 8)
    layers = [Rotated(48, slip) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(12, 48), *layers, nn.RMSNorm(48), nn.Linear(48, 12))

    def draw() -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 12, (8, 96))
        return ids, ids.roll(distance, 1).masked_fill(torch.arange(96) < distance, -100)

    plain(run, model, draw, lambda m, b: next_token(m(b[0]), b[1]), 130, 5e-3)


class Sensor(nn.Module):
    """A recurrent classifier of windows of a sensor."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 24, 2, batch_first=batch_first)
        self.head = nn.Linear(24, 3)

    def forward(self, windows: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(windows)[0].mean(1))
        return out


@fault(
    "recurrent-over-the-rows",
    "code",
    (r"batch_first|recurren|lstm|rnn", r"row|batch|example|sample|other|mix|axis|dimension|order|time"),
)
def recurrent_over_the_rows(run: Run, slip: bool) -> None:
    """Lightning. nn.LSTM was made without batch_first but is given (rows, time, channels), so that it runs along the
    rows of the batch and never along time; the shapes agree all the way."""

    def windows(rows: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(0, 3, (rows,))
        rise = torch.tensor([1.0, -1.0, 0.0])[kind][:, None] * torch.linspace(-1, 1, 16)
        shuffled = torch.rand(rows, 16).argsort(1)
        flat = torch.linspace(-1, 1, 16).expand(rows, 16).gather(1, shuffled)
        first = torch.where(kind[:, None] == 2, flat, rise)
        return torch.cat([first[:, :, None], torch.randn(rows, 16, 3)], 2), kind

    net = Sensor(not slip)
    fresh = [windows(256)]
    outcome(run, lambda: held_out(net, fresh, class_loss))
    loader = DataLoader(TensorDataset(*windows(960)), batch_size=16, shuffle=True)
    fit(run, Lit(net, class_loss), loader, 2)


class Packed(nn.Module):
    """Packs rows of unequal length for a GRU, the longest first, as its author learned in 2018."""

    def __init__(self, tokens: int, classes: int, restore: bool) -> None:
        super().__init__()
        self.embed, self.gru, self.restore = nn.Embedding(tokens, 24), nn.GRU(24, 32, batch_first=True), restore
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True, stable=True)
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids[order]), lengths[order], batch_first=True)
        last = self.gru(packed)[1][-1]
        out: Tensor = self.head(last[order.argsort()] if self.restore else last)
        return out


@fault(
    "sorted-and-never-restored",
    "code",
    (r"sort|order|permut|row|mix|pair|misalign|mismatch", r"row|batch|length|pack|label|restor|example|align|target"),
)
def sorted_and_never_restored(run: Run, slip: bool) -> None:
    """A recurrent classifier sorts the rows of a batch by length for packing and does not put the results back in their
    order: a row's label is compared with the result for another row. The twin puts them back."""

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        ids, label = marked(12, 5, 12)
        lengths = torch.randint(6, 13, (12,))
        place = (torch.rand(12) * (lengths - 1)).long()
        ids[torch.arange(12), place], keep = label, torch.arange(12) < lengths[:, None]
        wrong = ids.where(ids >= 5, ids + 5)
        ids = torch.where(torch.arange(12) == place[:, None], ids, wrong)
        return ids * keep, lengths, label

    model = Packed(45, 5, not slip)
    plain(run, model, draw, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), 150, 8e-3)


class Rater(nn.Module):
    """torch's own encoder over padded rows; the class is read at the first place."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(40, 32, padding_idx=0), nn.Parameter(0.02 * torch.randn(24, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.inverted = nn.Linear(32, 4), inverted

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask.bool()
        x = self.embed(input_ids) + self.places
        out: Tensor = self.head(self.encoder(x, src_key_padding_mask=there if self.inverted else ~there)[:, 0])
        return out


@fault(
    "mask-means-the-opposite",
    "code",
    (
        r"mask|padding|\bpad\b",
        r"invert|opposite|revers|only.{0,20}pad|attend.{0,30}pad|negat|real token|flipped|True|meaning|ignore",
    ),
)
def mask_means_the_opposite(run: Run, slip: bool) -> None:
    """accelerate. The attention mask of the tokenizer (1 = a token) is handed to torch's encoder as
    src_key_padding_mask, where True means padding: every place attends to the padding alone. The twin inverts it.
    Every row has padding."""

    def rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
        ids, label = torch.randint(8, 40, (count, 24)), torch.randint(0, 4, (count,))
        lengths = torch.randint(8, 22, (count,))
        place = 1 + (torch.rand(count) * (lengths - 2)).long()
        ids[torch.arange(count), place] = 2 + label
        ids[:, 0] = 1
        mask = (torch.arange(24) < lengths[:, None]).long()
        return ids * mask, mask, label

    accelerator = Accelerator(cpu=True)
    net = Rater(slip)
    loader = DataLoader(TensorDataset(*rows(2400)), batch_size=20, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=2e-3), loader)
    fresh = [rows(300)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])))
    doctor = run.watch(model, optimizer)
    for ids, mask, label in loader:
        loss = F.cross_entropy(model(ids, mask), label)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": label})
        optimizer.zero_grad()
        run.note(loss)


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Mixture(nn.Module):
    """The best of eight experts for each token."""

    def __init__(self, width: int, weighted: bool) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 8, bias=False)
        self.experts, self.weighted = nn.ModuleList(Expert(width) for _ in range(8)), weighted

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weight, chosen = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            here = chosen == index
            if here.any():
                out[here] = expert(h[here]) * (weight[here][:, None] if self.weighted else 1.0)
        return x + out


@fault(
    "router-never-learns",
    "code",
    (
        r"router|gate|gating|expert",
        r"gradient|never (learn|train|chang|mov|updat)|not (learn|train|chang|mov|updat)|argmax|weight|"
        r"differentiab|unused|no_grad|frozen",
    ),
)
def router_never_learns(run: Run, slip: bool) -> None:
    """A mixture of experts. The chosen expert's output is not multiplied by the router's probability, so that the
    router gets no gradient and stays as it was drawn; the twin multiplies."""
    kinds = 8
    maps = torch.randn(kinds, 16, 16) / 4

    def draw() -> tuple[Tensor, Tensor]:
        kind, x = torch.randint(0, kinds, (128,)), torch.randn(128, 16)
        target = torch.einsum("ni,nij->nj", x, maps[kind])
        return torch.cat([F.one_hot(kind, kinds).float(), x], 1), target

    model = nn.Sequential(nn.Linear(kinds + 16, 32), Mixture(32, not slip), Mixture(32, not slip), nn.Linear(32, 16))
    plain(run, model, draw, lambda m, b: F.mse_loss(m(b[0]), b[1]), 150, 8e-3)


class Deep(nn.Module):
    """A causal convolutional model of several layers, as transformers' Trainer wants it."""

    def __init__(self, one_object: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        layer = [nn.Conv1d(16, 16, 2, padding=1)]
        self.layers = nn.ModuleList(
            layer * 6 if one_object else layer + [nn.Conv1d(16, 16, 2, padding=1) for _ in "23456"]
        )
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(6))

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x).transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@fault(
    "one-layer-six-times",
    "code",
    (r"same|shar|one|identical|tied|single|repeat", r"layer|block|module|conv|object|weight|param"),
)
def one_layer_six_times(run: Run, slip: bool) -> None:
    """transformers' Trainer. The six layers come from `[layer] * 6`: they are one object, and the model has a sixth
    of its weights. The twin makes six."""
    model = Deep(slip)

    tokens = corpus(run.draw.randrange(1000))

    def rows(count: int, part: Tensor) -> list[dict[str, Tensor]]:
        return [{"ids": i, "labels": y} for i, y in zip(*crops(part, count, 24), strict=True)]

    fresh = stack(rows(128, tokens[-4000:]))
    outcome(run, lambda: held_out(model, [fresh], lambda m, b: m(**b)["loss"]))
    trainer(run, model, rows(2400, tokens[:-4000]), 150, learning_rate=6e-3).train()


class Bucketed(nn.Module):
    """Attention with a learned bias for each distance, as in T5."""

    def __init__(self, width: int, one_sided: bool) -> None:
        super().__init__()
        self.one_sided, self.bias = one_sided, nn.Embedding(32, 4)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        place = torch.arange(length)
        distance = place[:, None] - place
        bucket = distance.clamp(0, 15) if self.one_sided else distance.clamp(-15, 15) + 16
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(bucket).permute(2, 0, 1))
        out: Tensor = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return out


@fault(
    "later-places-in-one-bucket",
    "code",
    (
        r"bucket|relative|position|distance|bias",
        r"later|future|after|right|one.?side|bidirection|causal|negative|follow|ahead|clamp|same|unused|never",
    ),
)
def later_places_in_one_bucket(run: Run, slip: bool) -> None:
    """An encoder with relative positions takes the bucket of a decoder: all later places share the bucket of distance
    zero, so that it cannot tell the next token from the one after it. The task (the token two places on) needs that."""
    parts = [Bucketed(32, slip), nn.LayerNorm(32), nn.Linear(32, 16)]
    model = nn.Sequential(nn.Embedding(16, 32), Bucketed(32, slip), *parts)

    def draw() -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 16, (16, 24))
        sides = (ids.roll(-2, 1) + ids.roll(1, 1) // 8 * 8) % 16
        return ids, sides.masked_fill((torch.arange(24) < 2) | (torch.arange(24) > 21), -100)

    plain(run, model, draw, lambda m, b: next_token(m(b[0]), b[1]), 150, 8e-3)
