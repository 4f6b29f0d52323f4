"""Round 19b, honest and odd: models rebuilt, frozen or tuned in part, and workers that are averaged."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    table,
)
from benchmarks.robustness.loops.round6_tools import regress
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.round10a_tools import tuned
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


class Waves(nn.Module):
    """States that decay each at its own pace, and a head whose answers have a scale of their own."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter, self.mix = nn.Linear(1, width), mlp(width, width, width)
        self.pace = nn.Parameter(torch.linspace(-1.0, 3.0, width))
        self.head = nn.Linear(width, 1)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("square", torch.ones(1))

    def spread(self) -> Tensor:
        return (self.square - self.mean.square()).clamp_min(1e-8).sqrt()

    @torch.no_grad()
    def rescale(self, y: Tensor, share: float = 0.1) -> None:
        """Takes new numbers into account, and rewrites the head so that what it says stays what it was."""
        mean, spread = self.mean.clone(), self.spread()
        self.mean.lerp_(y.mean(), share)
        self.square.lerp_(y.square().mean(), share)
        self.head.weight.mul_(spread / self.spread())
        self.head.bias.copy_((spread * self.head.bias + mean - self.mean) / self.spread())

    def standard(self, x: Tensor) -> Tensor:
        u, keep = self.enter(x[..., None]), self.pace.sigmoid()
        state = torch.zeros_like(u[:, 0])
        for t in range(u.shape[1]):
            state = keep * state + (1 - keep) * u[:, t]
        out: Tensor = self.head(self.mix(state).relu()).squeeze(1)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.standard(x) * self.spread() + self.mean


@honest("r19b-head-rewritten-as-answers-grow")
def head_rewritten_as_answers_grow(run: Run) -> None:
    """Plain loop, a state-space model of series whose answers grow a thousandfold, with PopArt (van Hasselt et al.
    2016). Before each step mean and spread of the answers move on and the head is written anew, so that its output
    stays the same; weights change outside of the optimizer in every step, whose moments are of the old scale."""
    own = apart(run.draw.randrange(999))
    taps = torch.randn(12, generator=own)

    def series(count: int, share: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 12, generator=own).cumsum(1) / 3
        return x, 1000.0**share * ((x * 0.8 ** torch.arange(11, -1, -1)).sum(1) + 2 + (x @ taps).tanh())

    model = Waves()
    x, y = series(300, 1.0, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x), y) / y.var()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for step in range(160):
        batch = series(64, min(1.0, step / 110))
        model.rescale(batch[1])
        optimizer.zero_grad()
        loss = 0.5 * F.mse_loss(model.standard(batch[0]), (batch[1] - model.mean) / model.spread())
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r19b-blocks-of-nothing-inserted")
def blocks_of_nothing_inserted(run: Run) -> None:
    """transformers' Trainer, a Llama grown for a new language as LLaMA Pro (Wu et al. 2024). Behind each old block
    comes a copy of it whose two last matrices are zero, so that the model says what it said; only copies learn, and in
    them at first only what is zero has a gradient, while the old blocks, the words and the head stay as they were."""
    language = Language(run.draw.randrange(999))
    model = llama(vocab_size=12, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    taught(model, lambda: language.rows(16, 24), lambda m, rows: m(input_ids=rows, labels=rows).loss, 50, 1e-2)
    new = near(language, run.draw.randrange(999))
    check = new.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check, use_cache=False).loss))
    model.requires_grad_(False)
    blocks = []
    for old in model.model.layers:
        added = copy.deepcopy(old).requires_grad_(True)
        nn.init.zeros_(added.self_attn.o_proj.weight)
        nn.init.zeros_(added.mlp.down_proj.weight)
        blocks += [old, added]
    for index, block in enumerate(blocks):
        block.self_attn.layer_idx = index
    model.model.layers = nn.ModuleList(blocks)
    model.config.num_hidden_layers = len(blocks)
    if hasattr(model.config, "layer_types") and model.config.layer_types:
        model.config.layer_types = list(model.config.layer_types[:1]) * len(blocks)
    rows = new.rows(1280, 24, apart(2))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, warmup_steps=4).train()


def factored(layer: nn.Linear, rank: int) -> nn.Sequential:
    """A layer as the product of two, from its largest directions."""
    u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    first, second = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features)
    with torch.no_grad():
        first.weight.copy_(s[:rank, None].sqrt() * v[:rank])
        second.weight.copy_(u[:, :rank] * s[:rank].sqrt())
        second.bias.copy_(layer.bias)
    return nn.Sequential(first, second)


@honest("r19b-factored-after-a-warm-up")
def factored_after_a_warm_up(run: Run) -> None:
    """Plain loop, a small GPT with full matrices for a while and with products of two from there on (Pufferfish, Wang
    et al. 2021). In the middle of the run singular value decompositions cut off most directions of all blocks but the
    first, the optimizer is made anew for the new weights, and the loss jumps up and comes down again."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=3)
    language_outcome(run, model, language)

    def steps(count: int, rate: float) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        doctor = run.watch(model, optimizer)
        for _ in range(count):
            rows = language.rows(16, 24)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
        doctor.close()

    steps(60, 5e-3)
    for block in list(model.blocks)[1:]:
        block.attention.qkv = factored(block.attention.qkv, 12)
        block.attention.out = factored(block.attention.out, 12)
        block.feed[0], block.feed[2] = factored(block.feed[0], 12), factored(block.feed[2], 12)
    steps(60, 3e-3)


def sums(count: int, turned: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Four words and what to say of them: the same words, or each word's neighbour in the alphabet; and an end."""
    words = torch.randint(2, 8, (count, 4), generator=own)
    said = (words - 1) % 6 + 2 if turned else words
    end = torch.ones(count, 1, dtype=torch.long)
    return {"input_ids": torch.cat([words, end], 1), "labels": torch.cat([said, end], 1)}


@honest("r19b-prefix-written-by-a-network")
def prefix_written_by_a_network(run: Run) -> None:
    """transformers' Trainer and peft's prefix tuning of a T5 with its projection (Li and Liang 2021). No weight of the
    model moves; a network that will be thrown away writes keys and values of the decoder from four vectors. The rate is
    a hundred times that of a usual fine-tuning, and attention looks at places which hold no word."""
    import peft
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"vocab_size": 8, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1}
    settings |= {"num_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "dropout_rate": 0.0}
    body = T5ForConditionalGeneration(T5Config(**settings))

    def mixed() -> dict[str, Tensor]:
        parts = sums(16, False), sums(16, True)
        return {k: torch.cat([parts[0][k], parts[1][k]]) for k in parts[0]}

    tuned(body, mixed, lambda batch: body(**batch).loss, 200, 5e-3)
    kind = peft.PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM", num_virtual_tokens=4, prefix_projection=True, encoder_hidden_size=48
    )
    model = peft.get_peft_model(body, kind)
    check = sums(96, True, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(**sums(1280, True, apart(run.draw.randrange(999))))
    hf_trainer(run, model, data, 80, learning_rate=1e-2).train()


class Gatherer(nn.Module):
    """Four small experts, each of a plane, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = mlp(6, 24, 4, act=nn.Tanh), mlp(6, 32, 4, act=nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        return (self.gate(x).softmax(1) * self.experts(x)).sum(1)


class Elastic:
    """Workers on springs: each goes its own way, and now and then it and the middle move towards each other."""

    def __init__(self, run: Run, middle: nn.Module, shares: list[Any], pull: float = 0.2) -> None:
        self.run, self.middle, self.pull = run, middle, pull
        self.batches = [endless(share) for share in shares]
        self.workers = [copy.deepcopy(middle) for _ in shares]
        self.optimizers = [torch.optim.SGD(w.parameters(), lr=0.03, momentum=0.9, nesterov=True) for w in self.workers]
        self.doctors = [run.watch(w, o) for w, o in zip(self.workers, self.optimizers, strict=True)]

    @torch.no_grad()
    def exchange(self) -> None:
        for middle, *apart_ in zip(self.middle.parameters(), *(w.parameters() for w in self.workers), strict=True):
            away = [self.pull * (p - middle) for p in apart_]
            for p, by in zip(apart_, away, strict=True):
                p.sub_(by)
            middle.add_(torch.stack(away).sum(0))

    def round(self) -> None:
        for batches, worker, optimizer, doctor in zip(
            self.batches, self.workers, self.optimizers, self.doctors, strict=True
        ):
            batch = next(batches)
            optimizer.zero_grad()
            loss = regress(worker, batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            self.run.note(loss)


@honest("r19b-workers-on-springs")
def workers_on_springs(run: Run) -> None:
    """Own class, four workers with a share of a table each by elastic averaging with momentum (Zhang et al. 2015).
    Every fourth round each worker and the middle move towards each other by a fifth of what is between them, and no
    optimizer knows of it; workers never agree, and the middle, without gradient or optimizer, is what is kept."""
    seed = run.draw.randrange(999)
    middle = Gatherer()
    number_outcome(run, middle, table(300, seed, apart(1)))
    rows = table(1600, seed, apart(2))
    shares = [loader(*(part[i::4] for part in rows), size=32) for i in range(4)]
    server = Elastic(run, middle, shares)
    for k in range(120):
        server.round()
        if k % 4 == 3:
            server.exchange()


class Reservoir(nn.Module):
    """An encoder in which every other block is as it was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(32, causal=False) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 3)
        for block in list(self.blocks)[1::2]:
            for p in block.parameters():
                if p.ndim > 1:
                    nn.init.orthogonal_(p)
                p.requires_grad_(False)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, keep)
        share = keep.float()[..., None]
        out: Tensor = self.head(self.norm((x * share).sum(1) / share.sum(1)))
        return out


@honest("r19b-every-other-block-stays-as-drawn")
def every_other_block_stays_as_drawn(run: Run) -> None:
    """Lightning, a reservoir transformer for documents, learned from nothing (Shen et al. 2021). Two blocks of five are
    frozen at their random, orthogonal start for good and were never trained by anybody; blocks below and above them
    learn, so that gradients go through weights which themselves have none."""
    net = Reservoir()
    class_outcome(run, net, documents(256, apart(1)))
    data = loader(*documents(640, apart(run.draw.randrange(999))), size=32)

    def rule(m: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=2e-3)

    fit(run, lit(net, lambda m, batch: F.cross_entropy(m(batch[0], batch[1]), batch[2]), rule), data, 100)
