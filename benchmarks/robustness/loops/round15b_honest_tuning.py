"""Round 15b, honest and odd: loading, adapting, and models that hold others."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome, update
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F


class Mixed(nn.Linear):
    """Lee et al. 2020: in each pass a share of the weights are the old ones, and the mean is put right."""

    def __init__(self, old: nn.Linear, share: float) -> None:
        super().__init__(old.in_features, old.out_features)
        self.load_state_dict(old.state_dict())
        self.share = share
        self.register_buffer("old", old.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.training:
            back = torch.rand_like(weight) < self.share
            weight = (torch.where(back, self.old, weight) - self.share * self.old) / (1 - self.share)
        return F.linear(x, weight, self.bias)


@honest("r15b-back-to-the-old-weights-by-chance")
def back_to_the_old_weights_by_chance(run: Run) -> None:
    """transformers' Trainer, BERT tuned with mixout, for small data sets. In each pass seven in ten entries of every
    matrix are the pretrained ones, so that each weight learns in three passes of ten, and the rest is stretched so that
    the mean is right; in evaluation the tuned weights stand alone. 96 texts, whose classes have other names than
    before."""
    model, rate = tiny_bert(hidden_dropout_prob=0.0, num_hidden_layers=2), 3e-3

    def called(m: Any, b: Any) -> Any:
        return F.cross_entropy(m(input_ids=b[0], attention_mask=b[1].long()).logits, b[2])

    taught(model, lambda: documents(24), called, 60)
    x, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: called(model, (x, keep, (y + 1) % 3))))
    for layer in model.bert.encoder.layer:
        for parent in layer.modules():
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    setattr(parent, name, Mixed(child, 0.7))
    x, keep, y = documents(96, apart(2))
    data = examples(input_ids=x, attention_mask=keep.long(), labels=(y + 1) % 3)
    hf_trainer(run, model, data, 50, learning_rate=rate).train()


class Upcycled(nn.Module):
    """Four copies of a feed-forward part; each word goes to the two that a router prefers."""

    def __init__(self, feed: nn.Module, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.experts = nn.ModuleList(copy.deepcopy(feed) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.router(x).topk(2, -1)
        share = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, best.softmax(-1))
        return sum(share[..., k, None] * expert(x) for k, expert in enumerate(self.experts))  # type: ignore[return-value]


@honest("r15b-four-experts-that-are-one")
def four_experts_that_are_one(run: Run) -> None:
    """accelerate, sparse upcycling (Komatsuzaki et al. 2023) of a small GPT. Each feed-forward part of a trained model
    is copied four times, so that all experts are equal to the last bit at first and the router's choice makes no
    difference; only the router is new, and what tells the experts apart is which words they are given."""
    language = Language(run.draw.randrange(999))
    other = near(language, run.draw.randrange(999), 0.5)
    model = Decoder(12, layers=2)
    taught(model, lambda: language.rows(12, 24), next_loss, 60)
    for block in model.blocks:
        block.feed = Upcycled(block.feed, 32)  # type: ignore[arg-type, assignment]
    text_outcome(run, model, other)

    def loss(m: Any, b: Any) -> Any:
        return next_loss(m, b[0])

    prepared(run, model, adam(model, 3e-3), loader(other.rows(1080, 24), size=12), loss, 1)


@honest("r15b-old-body-new-alphabet")
def old_body_new_alphabet(run: Run) -> None:
    """transformers' Trainer, a GPT-2 goes over to another script (Artetxe et al. 2020). The table of words is thrown
    away and drawn anew, the whole trained body is frozen above it, and only the new table learns, as input and as tied
    output: the first layer of all is trained through a model that stands still."""
    language = Language(run.draw.randrange(999), words=12, first=4)
    model = tiny_gpt2(16, n_layer=2)

    def called(m: Any, rows: Any) -> Any:
        return m(input_ids=rows, labels=rows).loss

    taught(model, lambda: language.rows(12, 20), called, 120)
    other = torch.cat([torch.arange(4), 4 + torch.randperm(12, generator=apart(run.draw.randrange(999)))])
    model.requires_grad_(False)
    table = model.get_input_embeddings()
    nn.init.normal_(table.weight, std=0.02)
    table.weight.requires_grad_(True)
    check = other[language.rows(96, 20, apart(1))]
    outcome(run, lambda: judged(model, lambda: called(model, check)))
    rows = other[language.rows(480, 20)]
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 100, learning_rate=2e-2).train()


@honest("r15b-two-layers-cut-out-and-healed")
def two_layers_cut_out_and_healed(run: Run) -> None:
    """transformers' Trainer and PEFT, a Llama made shorter (Gromov et al. 2024). The two middle layers of a trained
    model of four are cut out, so that the third part reads what it never read before; the loss begins above where the
    model was, and LoRA of rank eight on what is left heals the seam while the weights themselves stay."""
    from peft import LoraConfig, get_peft_model

    language = Language(run.draw.randrange(999), first=4)
    model = llama(vocab_size=16, num_hidden_layers=4, use_cache=False)
    taught(model, lambda: language.rows(12, 20), lambda m, rows: m(input_ids=rows, labels=rows).loss, 120, 4e-3)
    model.model.layers = nn.ModuleList([model.model.layers[0], model.model.layers[3]])
    model.config.num_hidden_layers = 2
    settings: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(tuned, lambda: tuned(input_ids=check, labels=check).loss))
    rows = language.rows(480, 20)
    hf_trainer(run, tuned, examples(input_ids=rows, labels=rows), 80, learning_rate=5e-3).train()


class Tangent(nn.Module):
    """A model's first-order expansion around its weights: what it says there, plus the slope along `moves`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.moves = nn.ParameterList(nn.Parameter(torch.zeros_like(p)) for p in inner.parameters())

    def forward(self, ids: Tensor) -> Tensor:
        at = dict(self.inner.named_parameters())
        along = dict(zip(at, self.moves, strict=True))
        value, slope = jvp(lambda p: functional_call(self.inner, p, (ids,)), (at,), (along,))
        out: Tensor = value + slope
        return out


@honest("r15b-along-the-tangent")
def along_the_tangent(run: Run) -> None:
    """Plain loop, a small GPT tuned in its tangent space (Ortiz-Jimenez et al. 2023), so that what was learned can be
    added and taken away. The trained weights never move; what learns begins at zero, for embeddings and norms too,
    enters by a forward-mode derivative, and the model is linear in it."""
    language = Language(run.draw.randrange(999))
    inner = Decoder(12)
    taught(inner, lambda: language.rows(12, 24), next_loss, 80)
    other = near(language, run.draw.randrange(999), 0.5)
    model = Tangent(inner)
    text_outcome(run, model, other)
    optimizer = adam(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        rows = other.rows(12, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)


class Chosen(nn.Module):
    """Ramanujan et al. 2020: a convolution or a linear layer as drawn, of which the half with the highest scores is
    there."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        std = (4 / layer.weight[0].numel()) ** 0.5
        layer.weight.copy_(std * layer.weight.sign())
        self.scores = nn.Parameter(0.1 * torch.randn_like(layer.weight))

    def forward(self, x: Tensor) -> Tensor:
        keep = (self.scores >= self.scores.flatten().median()).float()
        keep = keep + self.scores - self.scores.detach()
        weight = self.layer.weight * keep
        conv = isinstance(self.layer, nn.Conv2d)
        return F.conv2d(x, weight, padding=1) if conv else F.linear(x, weight)


@honest("r15b-found-and-not-trained")
def found_and_not_trained(run: Run) -> None:
    """accelerate, pictures by a net whose weights are never trained. All weights stay as drawn, with one size for a
    layer and random signs; what learns is a score for each that says whether it is there, straight through the choice
    of the better half, and the rate of 0.5 is one for scores."""
    seed = run.draw.randrange(999)
    with torch.no_grad():
        convs = [Chosen(nn.Conv2d(a, b, 3, padding=1, bias=False)) for a, b in ((1, 24), (24, 32))]
        head = Chosen(nn.Linear(128, 4, bias=False))
    parts: list[nn.Module] = []
    for conv in convs:
        parts += [conv, nn.BatchNorm2d(len(conv.scores), affine=False), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*parts, nn.Flatten(), head)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    prepared(run, model, optimizer, loader(*pictures(480, seed)), classify, 4)


class Nested(nn.Module):
    """A feed-forward part whose first units work without the others."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.up, self.down, self.used = nn.Linear(width, units), nn.Linear(units, width), units

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(F.linear(x, self.up.weight[: self.used], self.up.bias[: self.used]))
        return F.linear(h, self.down.weight[:, : self.used], self.down.bias)


@honest("r15b-small-model-within-the-large")
def small_model_within_the_large(run: Run) -> None:
    """Lightning, MatFormer (Devvrit et al. 2024): one GPT of three sizes. In each step one width is drawn, an eighth, a
    half or all of the units of each feed-forward part; the units beyond get no gradient then, the first ones learn more
    often than the last, and the loss jumps with the size that was drawn."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)
    feeds = [Nested(32, 128) for _ in net.blocks]
    for block, feed in zip(net.blocks, feeds, strict=True):
        block.feed = feed  # type: ignore[assignment]
    check = language.rows(64, 24, apart(1))

    def at(units: int, rows: Tensor) -> Tensor:
        for feed in feeds:
            feed.used = units
        return next_loss(net, rows)

    outcome(run, lambda: judged(net, lambda: sum(at(units, check) for units in (16, 64, 128)) / 3))

    def loss(m: Any, b: Any) -> Any:
        return at(run.draw.choice((16, 64, 128)), b[0])

    module = lit(net, loss, lambda m: torch.optim.AdamW(m.parameters(), lr=4e-3))
    fit(run, module, loader(language.rows(960, 24), size=12), 110)


class Passing(nn.Module):
    """A GRU's last state, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core, self.head = nn.Embedding(16, 24), nn.GRU(24, 32, batch_first=True), mlp(32, 32, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        states = self.core(self.tokens(ids))[0]
        out: Tensor = self.head(states[torch.arange(len(ids)), keep.sum(1) - 1])
        return out


@honest("r15b-two-who-learn-from-each-other")
def two_who_learn_from_each_other(run: Run) -> None:
    """Plain loop, deep mutual learning (Zhang et al. 2018) on texts. There is no trained teacher: an encoder and a GRU,
    both from nothing, each add to their own loss how far they are from what the other says, the other detached, and
    each has an optimizer and a doctor; early on they teach each other guesses."""
    pair: list[nn.Module] = [Classifier(), Passing()]
    x, keep, y = documents(256, apart(1))
    outcome(run, lambda: sum(judged(m, lambda m=m: F.cross_entropy(m(x, keep), y)) for m in pair))  # type: ignore[misc]
    optimizers = [adam(m) for m in pair]
    doctors = [run.watch(m, o) for m, o in zip(pair, optimizers, strict=True)]
    for _ in range(110):
        batch = documents(24)
        for me, other in ((0, 1), (1, 0)):
            said = pair[me](batch[0], batch[1])
            with torch.no_grad():
                heard = pair[other](batch[0], batch[1]).log_softmax(1)
            apart_by = F.kl_div(said.log_softmax(1), heard, reduction="batchmean", log_target=True)
            update(run, doctors[me], optimizers[me], F.cross_entropy(said, batch[2]) + apart_by, batch)
