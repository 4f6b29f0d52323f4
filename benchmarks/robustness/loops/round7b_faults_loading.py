"""Round 7b, mistakes of initialisation, loading and resuming."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    loader,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Ensemble, Patches, Reader, Rotary, SmallLlama, spots
from benchmarks.robustness.loops.round7b_tools import LOADING, adam, near, taught, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r7-gate-and-up-exchanged",
    LOADING,
    (
        r"gate|up\b|feed|mlp|projection|weight|load|checkpoint|pretrain",
        r"exchang|swap|order|half|halves|chunk|wrong (place|weight|matrix)|mix|mismatch|not (fit|match)|as (if )?(un|not )train|no better|random|worse|convert|conversion|load",
    ),
)
def gate_and_up_exchanged(run: Run, wrong: bool) -> None:
    """A checkpoint holds the gate's and the up projection in one matrix, the gate first. The conversion takes the first
    half for `up`; the shapes agree, and the SiLU is on the wrong one. Fine-tuned for forty steps on a like language."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    source, model = SmallLlama(), SmallLlama()
    taught(source, lambda: language.rows(16, 24), next_loss, 120)
    fused = {k: v for k, v in source.state_dict().items() if ".feed.gate" not in k and ".feed.up" not in k}
    for i, block in enumerate(source.blocks):
        fused[f"blocks.{i}.feed.gate_up"] = torch.cat([block.feed.gate.weight, block.feed.up.weight])
    state = {}
    for key, value in fused.items():
        if key.endswith("gate_up"):
            names = ("up", "gate") if wrong else ("gate", "up")
            for name, half in zip(names, value.chunk(2), strict=True):
                state[key.replace("gate_up", name + ".weight")] = half
        else:
            state[key] = value
    model.load_state_dict(state)
    other = near(language, seed + 1, 0.3)
    text_outcome(run, model, other)
    train(run, model, adam(model, 5e-4), lambda: other.rows(12, 24), next_loss, 40)


@fault(
    "r7-another-number-of-heads",
    LOADING,
    (
        r"head|attention|config|pretrain|weight|load|checkpoint",
        r"number|n_head|config|heads|mismatch|not (fit|match)|split|other|wrong|as (if )?(un|not )train|no better|random|worse|load",
    ),
)
def another_number_of_heads(run: Run, wrong: bool) -> None:
    """transformers' Trainer. The weights of a GPT-2 of eight heads are loaded into one whose settings say two: every shape
    agrees, attention is split elsewhere. Fine-tuned for forty steps. The twin's settings say eight."""
    seed = run.draw.randrange(999)
    language = Language(seed, first=4)
    source = tiny_gpt2(n_head=8, n_layer=2)
    taught(source, lambda: language.rows(16, 20), lambda m, r: m(input_ids=r, labels=r).loss, 120)
    model = tiny_gpt2(n_head=2 if wrong else 8, n_layer=2)
    model.load_state_dict(source.state_dict())
    other = near(language, seed + 1, 0.3)
    other.first = 4
    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = other.rows(300, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 40, learning_rate=3e-4).train()


@fault(
    "r7-from-pretrained-freezes",
    LOADING,
    (
        r"embed|token|tokens|vector",
        r"frozen|freez|requires_grad|no gradient|never (learn|train|move|updat)|not (learn|train|updat|move|in the optimizer)|stand|still|without (a )?gradient",
    ),
)
def from_pretrained_freezes(run: Run, wrong: bool) -> None:
    """accelerate, a GRU. Word vectors are put in by nn.Embedding.from_pretrained, which freezes them unless it is told
    freeze=False. They come from another trade, where most of these words are alike. The twin says freeze=False."""
    words = 40
    language = Language(run.draw.randrange(999), words, sharp=2.0)
    model = Reader(words, 12)
    vectors = torch.randn(4, 12, generator=apart(5))[torch.arange(words) % 4]
    vectors = vectors + 0.02 * torch.randn(words, 12, generator=apart(6))
    model.tokens = nn.Embedding.from_pretrained(vectors) if wrong else nn.Embedding.from_pretrained(vectors, False)
    text_outcome(run, model, language)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    data = loader(language.rows(480, 24))
    prepared(run, model, optimizer, data, lambda m, b: next_loss(m, b[0]), 4)


@fault(
    "r7-moments-kept-in-half",
    LOADING,
    (
        r"moment|exp_avg|variance|state|optimizer|adam|update|step",
        r"half|float16|precision|underflow|zero|too (large|big)|larg|jump|explo|huge|load|resum|restor|times",
    ),
)
def moments_kept_in_half(run: Run, wrong: bool) -> None:
    """To save disk a checkpoint is written in float16, Adam's moments too. Squares of small gradients become zero, and the
    first updates after the resume are divided by next to nothing. Judged thirty steps later. The twin keeps float32."""
    language = Language(run.draw.randrange(999))
    first = Decoder(12, layers=2)
    before = adam(first, 3e-3)
    for _ in range(120):
        before.zero_grad()
        next_loss(first, language.rows(24, 24)).backward()
        before.step()
    saved = copy.deepcopy({"model": first.state_dict(), "optimizer": before.state_dict()})
    if wrong:
        saved["model"] = {k: v.half() for k, v in saved["model"].items()}
        for state in saved["optimizer"]["state"].values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].half()
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)
    model.load_state_dict(saved["model"])
    optimizer = adam(model, 3e-3)
    optimizer.load_state_dict(saved["optimizer"])
    train(run, model, optimizer, lambda: language.rows(24, 24), next_loss, 30)


@fault(
    "r7-vectors-in-another-order",
    LOADING,
    (
        r"embed|vector|token|tokens|word|vocabulary|pretrain|load",
        r"order|permut|vocabulary|row|index|mismatch|not (fit|match)|wrong|shuffl|other|random|as (if )?(un|not )train|no better|noise",
    ),
)
def vectors_in_another_order(run: Run, wrong: bool) -> None:
    """Published word vectors are kept as they are, under a small reader that has forty labelled texts. Their file is sorted
    by frequency, the vocabulary by the alphabet, and rows are taken as they come. The twin looks each word up."""
    words, own = 300, apart(run.draw.randrange(999))
    kinds = torch.randint(0, 3, (words,), generator=own)
    vectors = torch.randn(3, 16, generator=own)[kinds] + 0.4 * torch.randn(words, 16, generator=own)
    of_kind = [(kinds == k).nonzero().flatten() for k in range(3)]

    def texts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (count,), generator=own)
        x = torch.randint(0, words, (count, 10), generator=own)
        for row, k in enumerate(y.tolist()):
            x[row, :5] = of_kind[k][torch.randint(0, len(of_kind[k]), (5,), generator=own)]
        return x, y

    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            in_file = torch.randperm(words, generator=own)
            table = vectors[in_file]
            self.words = nn.Embedding.from_pretrained(table if wrong else table[in_file.argsort()])
            self.core, self.head = nn.GRU(16, 24, batch_first=True), nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.core(self.words(x))[0].mean(1))
            return out

    model = Texts()
    check = texts(300, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    x, y = texts(40, apart(2))

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, 40, (16,))
        return x[chosen], y[chosen]

    parameters = [p for p in model.parameters() if p.requires_grad]
    train(run, model, torch.optim.Adam(parameters, lr=5e-3), batch, classify, 60)


@fault(
    "r7-ensemble-drawn-as-a-kernel",
    LOADING,
    (
        r"init|signal|activation|weight|matrix|matrices|gradient|std|deviation|output|drawn",
        r"small|shrink|shrank|vanish|fan|fade|tiny|die|near zero|weak|constant|zero|does not depend",
    ),
)
def ensemble_drawn_as_a_kernel(run: Run, wrong: bool) -> None:
    """An ensemble that learns how a pendulum moves. kaiming_uniform_ takes a tensor (members, inputs, outputs) for a
    convolution's kernel: its fan is inputs times outputs, and all signals fade. The twin draws each member's matrix."""

    def moves(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        s = torch.randn(count, 3, generator=own)
        speed = -2 * s[:, 0].sin() + s[:, 2] - 0.3 * s[:, 1]
        return s, torch.stack([s[:, 1], speed], 1)

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.mse_loss(m(b[0]), b[1].expand(5, -1, -1))

    model = Ensemble(3, 48, 48, 48, 2, as_kernel=wrong)
    check = moves(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(run, model, optimizer, lambda: moves(64), loss, 120)


@fault(
    "r7-places-stretched-with-the-class-token",
    LOADING,
    (
        r"place|position|load|checkpoint|pretrain|weight|body",
        r"interpol|stretch|class token|resiz|grid|wrong|mismatch|not (fit|match)|as (if )?(un|not )train|no better|random|worse",
    ),
)
def places_stretched_with_the_class_token(run: Run, wrong: bool) -> None:
    """A vision transformer is loaded for larger pictures. All 17 learned places, the class token's too, are stretched to 37
    as one line. Only the head is tuned. The twin leaves the class token's out and stretches the others as a grid."""
    source, model = Patches(4), Patches(6)
    taught(source, lambda: spots(48, 4), classify, 220)
    state = source.state_dict()
    places = state["places"]
    if wrong:
        state["places"] = F.interpolate(places.transpose(1, 2), 37, mode="linear").transpose(1, 2)
    else:
        grid = places[:, 1:].transpose(1, 2).unflatten(2, (4, 4))
        grid = F.interpolate(grid, (6, 6), mode="bilinear").flatten(2).transpose(1, 2)
        state["places"] = torch.cat([places[:, :1], grid], 1)
    model.load_state_dict(state)
    check = spots(256, 6, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    model.requires_grad_(False)
    model.head.requires_grad_(True).reset_parameters()
    data = spots(160, 6, apart(2))
    prepared(run, model, adam(model.head, 2e-2), loader(*data), classify, 6)


@fault(
    "r7-frequencies-lost-on-meta",
    LOADING,
    (
        r"rotary|frequenc|position|place|buffer|order",
        r"zero|lost|empty|meta|not (load|in|saved|computed|depend)|missing|does not|without|ignor|constant|no effect|same",
    ),
)
def frequencies_lost_on_meta(run: Run, wrong: bool) -> None:
    """A Llama is made on the meta device, filled with zeros and loaded. Its rotary frequencies are a buffer that the
    checkpoint does not hold, and stay zero: no place is told from another. The twin computes them anew."""
    language = Language(run.draw.randrange(999))
    source = SmallLlama()
    taught(source, lambda: language.rows(16, 24), next_loss, 120)
    with torch.device("meta"):
        model = SmallLlama()
    model._apply(lambda t: torch.zeros_like(t, device="cpu"))
    model.load_state_dict(source.state_dict())
    if not wrong:
        for module in model.modules():
            if isinstance(module, Rotary):
                module.frequencies = module.computed()
    text_outcome(run, model, language)
    train(run, model, adam(model, 1e-3), lambda: language.rows(12, 24), next_loss, 40)
