"""Initialisation, and the loading of weights."""

import copy
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import gpt2, next_token
from benchmarks.robustness.loops.unseen_faults_code import plain
from benchmarks.robustness.loops.unseen_faults_common import (
    Lit,
    bars,
    chain,
    fit,
    held_out,
    outcome,
    stack,
    trainer,
    walks,
)
from benchmarks.robustness.loops.unseen_faults_rows import class_loss, marked
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def learned(model: nn.Module, draw: Any, loss_of: Any, steps: int, rate: float = 5e-3) -> None:
    """Unwatched: what somebody else trained and published."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, draw()).backward()
        optimizer.step()
    model.zero_grad()


class Trunk(nn.Module):
    """A recurrent trunk and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"embed": nn.Embedding(40, 32), "gru": nn.GRU(32, 32, 2, batch_first=True)})
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body["gru"](self.body["embed"](ids))[0].amax(1))
        return out


@fault(
    "nothing-was-loaded",
    "loading",
    (
        r"load|pretrain|checkpoint|weights?|initial|scratch|random",
        r"not (load|match|applied)|never|strict|prefix|key|missing|scratch|random|fresh|unmatched|initiali[sz]|chance",
    ),
)
def nothing_was_loaded(run: Run, slip: bool) -> None:
    """accelerate. The checkpoint was saved from a wrapped model, its keys begin with `module.`; load_state_dict with
    strict=False finds none of them and the fine-tuning on few rows starts from random weights. The twin takes the
    prefix off."""
    published = Trunk(6)
    learned(published, lambda: marked(32, 6), class_loss, 120)
    state = {"module." + key: value for key, value in published.state_dict().items() if not key.startswith("head")}
    model = Trunk(3)
    if not slip:
        state = {key.removeprefix("module."): value for key, value in state.items()}
    model.load_state_dict(state, strict=False)

    def rows(count: int) -> tuple[Tensor, Tensor]:
        ids, label = marked(count, 6)
        return ids, label % 3

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*rows(200)), batch_size=20, shuffle=True)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fresh = [rows(400)]
    outcome(run, lambda: held_out(model, fresh, class_loss))
    doctor = run.watch(prepared, optimizer)
    for _ in range(5):
        for batch in loader:
            loss = class_loss(prepared, batch)
            accelerator.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            optimizer.zero_grad()
            run.note(loss)


@fault(
    "initialised-after-loading",
    "loading",
    (
        r"init|random|reset|load|pretrain|fresh|overwrit|weights",
        r"linear|mlp|attention|layer|c_attn|c_fc|c_proj|conv1d|matri|load|pretrain|part|overwrit",
    ),
)
def initialised_after_loading(run: Run, slip: bool) -> None:
    """transformers' Trainer, GPT-2. After the weights are loaded the model's initialisation runs once more over the
    matrices of its layers, while embeddings and norms stay as loaded. The twin initialises first."""
    table = chain(32, run.draw.randrange(1000), 3.0)
    published = gpt2(vocab_size=32)

    def language(model: nn.Module, ids: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        return loss

    def text(rows: int) -> Tensor:
        """What follows depends on the token before last."""
        two = torch.zeros(rows, 24, dtype=torch.long)
        two[:, 0::2], two[:, 1::2] = walks(table, rows, 12), walks(table, rows, 12)
        return two

    learned(published, lambda: text(16), language, 150)
    model = gpt2(vocab_size=32)
    model.load_state_dict(published.state_dict())
    if slip:
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and ".h." in name:
                nn.init.normal_(weight, std=0.02)
    fresh = [text(64) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, language))
    trainer(run, model, [{"input_ids": row, "labels": row} for row in text(480)], 60, learning_rate=5e-4).train()


class Decoder(nn.Module):
    """A decoder of one's own, with the projections of queries, keys and values apart."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(32, width), nn.Embedding(32, width)
        self.q = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.k = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.v = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.o = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for i in range(2):
            h = self.norms[2 * i](x)
            parts = (p[i](h).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.o[i](mixed.transpose(1, 2).flatten(2))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x)), approximate="tanh"))
        out: Tensor = self.norms[4](x) @ self.embed.weight.T
        return out


@torch.no_grad()
def convert(source: Any, per_head: bool = False, transpose_square: bool = True) -> Decoder:
    """A GPT-2 of transformers into the decoder above; its matrices lie the other way round."""
    model, width = Decoder(), 32
    model.embed.weight.copy_(source.transformer.wte.weight)
    model.places.weight.copy_(source.transformer.wpe.weight[:32])
    for i, layer in enumerate(source.transformer.h):
        weight, bias = layer.attn.c_attn.weight.T, layer.attn.c_attn.bias
        if per_head:
            weight = weight.view(4, 3, width // 4, width).transpose(0, 1).reshape(3 * width, width)
            bias = bias.view(4, 3, width // 4).transpose(0, 1).reshape(-1)
        for number, part in enumerate((model.q, model.k, model.v)):
            part[i].weight.copy_(weight[number * width : (number + 1) * width])
            part[i].bias.copy_(bias[number * width : (number + 1) * width])
        square = layer.attn.c_proj.weight
        model.o[i].weight.copy_(square.T if transpose_square else square)
        model.o[i].bias.copy_(layer.attn.c_proj.bias)
        for linear, conv in ((model.up[i], layer.mlp.c_fc), (model.down[i], layer.mlp.c_proj)):
            linear.weight.copy_(conv.weight.T)
            linear.bias.copy_(conv.bias)
        model.norms[2 * i].load_state_dict(layer.ln_1.state_dict())
        model.norms[2 * i + 1].load_state_dict(layer.ln_2.state_dict())
    model.norms[4].load_state_dict(source.transformer.ln_f.state_dict())
    return model


def continued(run: Run, **how: bool) -> None:
    """A GPT-2 learns a language elsewhere; converted, it goes on with it at a small rate."""
    tokens = corpus(run.draw.randrange(1000))
    held, tokens = tokens[-4000:], tokens[:-4000]
    source = gpt2(vocab_size=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    learned(source, lambda: crops(tokens, 16, 24), lambda m, b: next_token(m(b[0]).logits, b[1]), 280, 3e-3)
    model = convert(source, **how)
    fresh = [crops(held, 64, 24) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: next_token(m(b[0]), b[1])))
    plain(run, model, lambda: crops(tokens, 8, 24), lambda m, b: next_token(m(b[0]), b[1]), 50, 3e-4)


@fault(
    "thirds-read-by-head",
    "loading",
    (
        r"quer|key|value|qkv|fused|attention|\bq\b",
        r"convert|load|split|order|interleav|permut|mix|wrong|mismatch|layout|head|pretrain|random|scrambl",
    ),
)
def thirds_read_by_head(run: Run, slip: bool) -> None:
    """A GPT-2 is converted to a decoder of one's own. The fused projection holds all queries, all keys, all values; the
    conversion reads it head by head, as another family of models stores it. Everything fits and trains on."""
    continued(run, per_head=slip)


@fault(
    "square-matrix-not-turned",
    "loading",
    (r"transpos|orient|turned|rotated|layout|wrong way", r"\bo\b|output|proj|square|attention|conv1d"),
)
def square_matrix_not_turned(run: Run, slip: bool) -> None:
    """A GPT-2 is converted to a decoder of one's own. Its Conv1D matrices are transposed where the shapes demand it;
    the square one, the attention's output projection, is copied as it lies. The twin transposes all."""
    continued(run, transpose_square=not slip)


@fault(
    "tied-to-a-wide-embedding",
    "loading",
    (
        r"embed|tied|tying|head|logit",
        r"std|scale|init|large|big|wide|variance|deviation|1\.0|unit|too (high|large)|magnitude|range|norm",
    ),
)
def tied_to_a_wide_embedding(run: Run, slip: bool) -> None:
    """A decoder of one's own ties its output to the embedding but leaves the embedding as torch draws it, with
    deviation 1, so that the first logits have a deviation of six. The twin draws it with 0.02."""
    tokens = corpus(run.draw.randrange(1000))
    held, tokens = tokens[-4000:], tokens[:-4000]
    model = Decoder()
    if not slip:
        nn.init.normal_(model.embed.weight, std=0.02)
        nn.init.normal_(model.places.weight, std=0.02)
    fresh = [crops(held, 64, 24) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: next_token(m(b[0]), b[1])))
    plain(run, model, lambda: crops(tokens, 8, 24), lambda m, b: next_token(m(b[0]), b[1]), 40, 1.5e-3)


class Committee(nn.Module):
    """Six small experts, blended by a router for every row."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.router = nn.Linear(12, 6)
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.router.bias)
        one = [nn.Sequential(nn.Linear(12, 4), nn.GELU(), nn.Linear(4, 4)) for _ in range(6)]
        self.experts = nn.ModuleList([copy.deepcopy(one[0]) for _ in range(6)] if copies else one)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        share = self.router(x).softmax(-1)
        out = torch.stack([expert(x) for expert in self.experts], -1)
        logits = (out * share[:, None]).sum(-1)
        return {"loss": F.mse_loss(logits, labels), "logits": logits}


@fault(
    "experts-all-copies",
    "loading",
    (r"expert", r"same|equal|identical|symmetr|cop(y|ies)|duplicate|deepcopy|redundan|uniform"),
)
def experts_all_copies(run: Run, slip: bool) -> None:
    """transformers' Trainer. A dense mixture of six experts: all are deep copies of the first, and the router begins at
    zero, so that all get the same gradient and stay the same for ever. The twin draws each."""
    model, inner, outer = Committee(slip), torch.randn(12, 24) / 2, torch.randn(24, 4) / 3

    def rows(count: int) -> list[dict[str, Tensor]]:
        x = torch.randn(count, 12)
        y = (x @ inner).relu() @ outer
        return [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]

    fresh = stack(rows(512))
    outcome(run, lambda: held_out(model, [fresh], lambda m, b: m(**b)["loss"]))
    trainer(run, model, rows(4000), 250, learning_rate=1e-2, per_device_train_batch_size=32).train()


@fault(
    "buffers-left-behind",
    "loading",
    (
        r"running|buffer|statistic|batch.?norm|\bbn\b",
        r"load|copied|copy|default|missing|pretrain|not |stale|initial|eval|mismatch|frozen",
    ),
)
def buffers_left_behind(run: Run, slip: bool) -> None:
    """Lightning, convolutional. A published trunk is copied parameter by parameter and kept in eval mode; the running
    means and variances of its norms, which are buffers, stay at 0 and 1. The twin copies the state dict."""

    def trunk() -> nn.Sequential:
        parts: list[nn.Module] = [nn.Conv2d(1, 12, 3, 1, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1)]
        return nn.Sequential(*parts, nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())

    def pictures(rows: int) -> tuple[Tensor, Tensor]:
        x, y = bars(rows)
        return 255 * x, y

    published = nn.Sequential(trunk(), nn.Linear(24, 4))
    learned(published, lambda: pictures(48), class_loss, 80)
    body: Any = trunk()
    if slip:
        with torch.no_grad():
            for mine, theirs in zip(body.parameters(), published[0].parameters(), strict=True):
                mine.copy_(theirs)
    else:
        body.load_state_dict(copy.deepcopy(published[0].state_dict()))
    body.requires_grad_(False)

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(24, 2)
            self.train()

        def train(self, mode: bool = True) -> "Kept":
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x))
            return out

    def new_task(rows: int) -> tuple[Tensor, Tensor]:
        x, y = pictures(rows)
        return x, y % 2

    net, fresh = Kept(), [new_task(256)]
    outcome(run, lambda: held_out(net, fresh, class_loss))
    loader = DataLoader(TensorDataset(*new_task(640)), batch_size=32, shuffle=True)
    fit(run, Lit(net, class_loss, lambda p: torch.optim.AdamW([w for w in p if w.requires_grad], lr=1e-2)), loader, 4)
