"""Round 20b, honest and odd: tuning what was trained before, averages of workers, and task after task."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import taught, update
from torch import Tensor, nn
from torch.nn import functional as F


class Framed(nn.Module):
    """A frozen network for pictures of 8 by 8 that is asked about smaller ones within a frame that can be learned."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False).eval()
        self.frame = nn.Parameter(torch.zeros(1, 1, 8, 8))
        inner = torch.zeros(1, 1, 8, 8)
        inner[:, :, 2:6, 2:6] = 1
        self.register_buffer("inner", inner)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        whole = F.pad(x, (2, 2, 2, 2)) + (1 - self.inner) * self.frame.tanh()
        return self.frozen(whole).view(len(x), 2, 2).mean(2)


@honest("r20b-a-frame-around-the-picture")
def a_frame_around_the_picture(run: Run) -> None:
    """Lightning, a network for four kinds of pictures is put to another use without a change (Elsayed et al. 2019;
    Tsai et al. 2020). Only the frame around smaller pictures is learned, at a large rate and in the same place for all;
    two old kinds stand for one new one, and all weights of the network keep still, with its norms as they were."""
    old = cnn()
    taught(old, lambda: pictures(32, 9), classify, 60)
    old.zero_grad()

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 2, (count,), generator=own)
        x = 0.4 + 0.15 * torch.randn(count, 1, 4, 4, generator=own)
        x[torch.arange(count), 0, 0] += 0.6 * (1 - y[:, None])
        x[torch.arange(count), 0, 3] += 0.6 * y[:, None]
        return x, y

    net = Framed(old)
    class_outcome(run, net, rows(300, apart(1)))
    module = lit(net, classify, lambda m: torch.optim.Adam([m.frame], lr=5e-2))
    fit(run, module, loader(*rows(640, apart(run.draw.randrange(999))), size=32), 120)


class Upcycled(nn.Module):
    """Four copies of one feed-forward part, of which each word goes through two."""

    def __init__(self, feed: nn.Module, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(copy.deepcopy(feed) for _ in range(4))
        self.router = nn.Linear(width, 4, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        chance = self.router(x).softmax(-1)
        weights, chosen = chance.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        used = F.one_hot(chosen, 4).sum(-2).float()
        self.balance = 4 * ((used / 2).flatten(0, -2).mean(0) * chance.flatten(0, -2).mean(0)).sum()
        gate = torch.zeros_like(chance).scatter(-1, chosen, weights)
        return sum(gate[..., k, None] * expert(x) for k, expert in enumerate(self.experts))  # type: ignore[return-value]


@honest("r20b-copies-that-become-experts")
def copies_that_become_experts(run: Run) -> None:
    """Plain loop, a GPT is made into a mixture in mid-run (sparse upcycling, Komatsuzaki et al. 2023). After sixty
    steps each feed-forward part becomes four experts that are the same to the last digit, behind a router close to
    zero, and AdamW is made anew. The weights of two copies sum to one, so that the model says the same at first."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    for stage in range(2):
        if stage:
            for block in model.blocks:
                block.feed = Upcycled(block.feed, 32)  # type: ignore[assignment, arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        doctor = run.watch(model, optimizer)
        for _ in range(60):
            rows = language.rows(16, 20)
            loss = next_loss(model, rows)
            if stage:
                loss = loss + 0.01 * sum(block.feed.balance for block in model.blocks)  # type: ignore[union-attr, misc]
            update(run, doctor, optimizer, loss, rows)


class Kept(nn.Module):
    """Lets a share of a weight's entries through: those with the highest scores, which have the mask's gradient."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros_like(weight))
        self.share = 1.0

    def forward(self, weight: Tensor) -> Tensor:
        if self.share >= 1:
            return weight * (1 + self.scores - self.scores.detach())
        least = self.scores.detach().flatten().kthvalue(int((1 - self.share) * weight.numel()) + 1).values
        mask = (self.scores >= least).float() + self.scores - self.scores.detach()
        return weight * mask


@honest("r20b-kept-if-it-moves-away-from-zero")
def kept_if_it_moves_away_from_zero(run: Run) -> None:
    """transformers' Trainer, a BERT is tuned to a new numbering of topics while three weights in four go (movement
    pruning, Sanh et al. 2020). Scores begin at zero, have twice the rate, get their gradient straight through a mask
    that cuts, and no decay; the share that is kept falls by a cubic, and with it the loss may rise in between."""
    from torch.nn.utils import parametrize
    from transformers import TrainerCallback

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x, mask, y = documents(count, own)
        return x, mask.long(), y

    model = tiny_bert()

    def loss_of(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(input_ids=batch[0], attention_mask=batch[1]).logits, batch[2])

    taught(model, lambda: rows(32), loss_of, 60, 2e-3)
    linear = [m for m in model.bert.encoder.modules() if isinstance(m, nn.Linear)]
    kept = [Kept(m.weight) for m in linear]
    for module, one in zip(linear, kept, strict=True):
        parametrize.register_parametrization(module, "weight", one)
    x, mask, y = rows(512, apart(run.draw.randrange(999)))
    test = rows(300, apart(1))
    outcome(run, lambda: judged(model, lambda: loss_of(model, (*test[:2], (test[2] + 1) % 3))))

    class Cutting(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            left = min(1.0, max(0.0, (state.global_step - 15) / 65))
            for one in kept:
                one.share = 0.25 + 0.75 * (1 - left) ** 3

    scores = [one.scores for one in kept]
    others = [p for name, p in model.named_parameters() if not name.endswith("scores")]
    optimizer = torch.optim.AdamW([{"params": others}, {"params": scores, "lr": 6e-3, "weight_decay": 0.0}], lr=3e-3)
    data = examples(input_ids=x, attention_mask=mask, labels=(y + 1) % 3)
    more = {"callbacks": [Cutting()], "optimizers": (optimizer, None)}
    hf_trainer(run, model, data, 110, more=more, lr_scheduler_type="constant").train()


class Linear(nn.Module):
    """Attention as a recurrence: sums of keys and values, with features learned in the softmax's place."""

    def __init__(self, old: Attention, width: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = old.heads, old.qkv, old.out
        eye = torch.eye(width // old.heads)
        self.features = nn.Parameter(torch.cat([eye, -eye], 1).repeat(old.heads, 1, 1))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        q, k = (q @ self.features).relu() + 1e-3, (k @ self.features).relu() + 1e-3
        sums = (k[..., :, None] * v[..., None, :]).cumsum(2)
        mixed = (q[..., None, :] @ sums).squeeze(-2) / (q * k.cumsum(2)).sum(-1, keepdim=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return out


@honest("r20b-attention-made-a-recurrence")
def attention_made_a_recurrence(run: Run) -> None:
    """accelerate's loop, a GPT that was trained before gets a recurrence in place of its softmax (Kasai et al. 2021).
    Weights of queries, keys, and values are kept as they are although what reads them is another function; features of
    each head are learned from the identity and its negative, and a short tuning of everything brings the loss back."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    taught(model, lambda: language.rows(16, 20), next_loss, 80)
    for block in model.blocks:
        block.attention = Linear(block.attention, 32)  # type: ignore[assignment, arg-type]
    language_outcome(run, model, language)
    data = loader(language.rows(640, 20, apart(7)), size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prepared(run, model, optimizer, data, lambda m, batch: next_loss(m, batch[0]), 2)


class OneBodyManyHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 40), nn.Linear(40, 40)
        self.heads = nn.ModuleList(nn.Linear(40, 3) for _ in range(3))
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, task: int) -> Tensor:
        hidden = self.first(x).relu()
        self.inputs = [x.detach(), hidden.detach()]
        out: Tensor = self.heads[task](self.second(hidden).relu())
        return out


@honest("r20b-outside-what-came-before")
def outside_what_came_before(run: Run) -> None:
    """Plain loop, three tasks one after the other by gradient projection memory (Saha et al. 2021). From the gradients
    of the body all is taken out that lies where inputs of earlier tasks lie, so that they grow short with each task;
    heads of other tasks have none, nor have the body's biases after the first; old rows are never read again."""
    own = apart(run.draw.randrange(999))
    sources = [torch.randn(5, 12, generator=own) / 2 for _ in range(3)]
    rules = [torch.randn(5, 3, generator=own) for _ in range(3)]

    def rows(task: int, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        z = torch.randn(count, 5, generator=own)
        return z @ sources[task] + 0.05 * torch.randn(count, 12, generator=own), (z @ rules[task]).argmax(1)

    net = OneBodyManyHeads()
    tests = [rows(task, 200, apart(task)) for task in range(3)]

    def of_all() -> Tensor:
        return torch.stack([F.cross_entropy(net(x, task), y) for task, (x, y) in enumerate(tests)]).mean()

    outcome(run, lambda: judged(net, of_all))
    bases: list[Tensor] = [torch.zeros(12, 0), torch.zeros(40, 0)]
    for task in range(3):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        doctor = run.watch(net, optimizer)
        for _ in range(60):
            x, y = batch = rows(task, 32)
            loss = F.cross_entropy(net(x, task), y)
            optimizer.zero_grad()
            loss.backward()
            for layer, basis in zip((net.first, net.second), bases, strict=True):
                layer.weight.grad -= layer.weight.grad @ basis @ basis.T  # type: ignore[operator]
                if task:
                    layer.bias.grad = None
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
        with torch.no_grad():
            net(rows(task, 200)[0], task)
            for k, seen in enumerate(net.inputs):
                left = seen.T - bases[k] @ (bases[k].T @ seen.T)
                directions, sizes, _ = torch.linalg.svd(left, full_matrices=False)
                total = seen.square().sum()
                explained = 1 - (left.square().sum() - sizes.square().cumsum(0)) / total
                enough = int((explained < 0.97).sum()) + 1
                bases[k] = torch.cat([bases[k], directions[:, :enough]], 1)


@honest("r20b-two-low-ranks-multiplied")
def two_low_ranks_multiplied(run: Run) -> None:
    """transformers' Seq2SeqTrainer and peft, a T5 that copies learns to read one word for another by LoHa (Hyeon-Woo et
    al. 2022). Each change is the entrywise product of two matrices of rank four; one of four factors begins at zero, so
    that in the first step only that one has a gradient, and the body with its shared table of words stands still."""
    import transformers
    from peft import LoHaConfig, get_peft_model

    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "num_layers": 1}
    settings |= {"vocab_size": 16, "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0}
    body = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings))

    def words(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.randint(2, 16, (count, 7), generator=own)

    def copying(m: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = m(input_ids=x, labels=x).loss
        return out

    taught(body, lambda: words(32), copying, 140, 1e-2)
    body.zero_grad()
    other = torch.arange(16)
    other[2:] = 2 + torch.randperm(14, generator=apart(run.draw.randrange(999)))
    names = ["q", "k", "v", "o", "wi", "wo"]
    model = get_peft_model(body, LoHaConfig(r=4, alpha=8, target_modules=names, init_weights=True))
    check = words(200, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=other[check]).loss))
    x = words(512, apart(2))
    told = transformers.Seq2SeqTrainer
    more = {"base": told, "kind": transformers.Seq2SeqTrainingArguments, "learning_rate": 3e-2}
    hf_trainer(run, model, examples(input_ids=x, labels=other[x]), 80, warmup_steps=10, **more).train()


def part_of(model: nn.Sequential, width: int) -> nn.Sequential:
    """The first units of each layer as a smaller network."""
    small = mlp(8, width, width, 4)
    for name, p in small.named_parameters():
        p.data.copy_(model.get_parameter(name)[tuple(slice(size) for size in p.shape)])
    return small


@honest("r20b-workers-of-three-widths")
def workers_of_three_widths(run: Run) -> None:
    """Plain loop, a table on machines of unequal size (HeteroFL, Diao et al. 2021) with a step of the server's (Reddi
    et al. 2021). A machine gets the first units of each layer, all, half, or a quarter, and makes three steps of its
    own; where they overlap, changes are averaged; with their sign turned they are the server's gradient, for a rate of
    one and without any backward. The last units hear from a third of the machines, and in some rounds from none."""
    own = apart(run.draw.randrange(999))
    rule = torch.randn(8, 4, generator=own)

    def rows(count: int, shift: float, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, generator=own) + shift
        return x, (x @ rule + (2 * x[:, :4]).sin()).argmax(1)

    sites = [(rows(100, 0.3 * float(torch.randn((), generator=own)), own), 32 >> k % 3) for k in range(9)]
    server = mlp(8, 32, 32, 4)
    class_outcome(run, server, rows(400, 0.0, apart(1)))
    optimizer = torch.optim.SGD(server.parameters(), lr=1.0)
    doctor = run.watch(server, optimizer)
    for _ in range(80):
        sums = {name: torch.zeros_like(p) for name, p in server.named_parameters()}
        counts = {name: torch.zeros_like(p) for name, p in server.named_parameters()}
        losses, batches = [], []
        for site in torch.randperm(9)[:4].tolist():
            (x, y), width = sites[site]
            small = part_of(server, width)
            local = torch.optim.SGD(small.parameters(), lr=0.1)
            for _ in range(3):
                at = torch.randint(0, 100, (32,))
                loss = F.cross_entropy(small(x[at]), y[at])
                local.zero_grad()
                loss.backward()
                local.step()
                losses.append(loss.detach())
                batches.append((x[at], y[at]))
            for name, p in small.named_parameters():
                part = tuple(slice(size) for size in p.shape)
                sums[name][part] += server.get_parameter(name).detach()[part] - p.detach()
                counts[name][part] += 1
        for name, p in server.named_parameters():
            p.grad = sums[name] / counts[name].clamp(min=1)
        optimizer.step()
        loss = torch.stack(losses).mean()
        doctor.step(loss, batches)
        run.note(loss)
