"""Round 7b, mistakes of initialisation, loading and resuming."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
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
    "r7-gains-stored-less-one",
    LOADING,
    (
        r"rms|layer ?norm|normali|gain|load|checkpoint|pretrain|signal|activation",
        r"zero|small|vanish|shrink|shrank|\bone\b|offset|fade|tiny|mismatch|not (fit|match)|as (if )?(un|not )train|no better|random",
    ),
)
def gains_stored_less_one(run: Run, wrong: bool) -> None:
    """A family of models multiplies by 1 + w in its RMS norms, and stores w, which is near zero. Loaded into norms that
    multiply by w, the signal of every block is next to nothing. The twin adds the one. Tuned for forty steps."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    source, model = SmallLlama(), SmallLlama()
    taught(source, lambda: language.rows(16, 24), next_loss, 100)
    state = {k: v - 1 if "norm" in k else v for k, v in source.state_dict().items()}
    if not wrong:
        state = {k: v + 1 if "norm" in k else v for k, v in state.items()}
    model.load_state_dict(state)
    other = near(language, seed + 1, 0.3)
    text_outcome(run, model, other)
    train(run, model, adam(model, 1e-3), lambda: other.rows(12, 24), next_loss, 40)


@fault(
    "r7-another-number-of-heads",
    LOADING,
    (
        r"attention|n_head|heads|config|pretrain|load|checkpoint",
        r"number|n_head|config|heads|mismatch|not (fit|match)|split|as (if )?(un|not )train|no better|random|worse",
    ),
)
def another_number_of_heads(run: Run, wrong: bool) -> None:
    """transformers' Trainer. The weights of a GPT-2 of one head are loaded into one whose settings say eight: every shape
    agrees, attention is split elsewhere. Its rows come round again. Tuned for fifteen steps. The twin says one."""

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.randint(4, 16, (count, 5), generator=own).repeat(1, 4)

    source, model = tiny_gpt2(n_head=1), tiny_gpt2(n_head=8 if wrong else 1)
    taught(source, lambda: rows(24), lambda m, r: m(input_ids=r, labels=r).loss, 140)
    model.load_state_dict(source.state_dict())
    check = rows(96, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    data = rows(240)
    hf_trainer(run, model, examples(input_ids=data, labels=data), 15, learning_rate=3e-4).train()


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
    "r7-gates-of-another-library",
    LOADING,
    (
        r"gate|lstm|core|recurrent|load|checkpoint|pretrain|weight",
        r"order|gate|permut|exchang|swap|convert|conversion|mismatch|not (fit|match)|as (if )?(un|not )train|no better|random|worse|another library",
    ),
)
def gates_of_another_library(run: Run, wrong: bool) -> None:
    """An LSTM's weights come from a library that keeps its gates as input, new, forget, output; here they are input,
    forget, new, output. All is copied as it lies, and tuned for thirty steps. The twin puts the gates in order."""
    seed = run.draw.randrange(999)
    language = Language(seed, sharp=2.0)
    source, model = Reader(12, core=nn.LSTM), Reader(12, core=nn.LSTM)
    taught(source, lambda: language.rows(24, 24), next_loss, 160, 1e-2)

    def in_order(tensor: Tensor) -> Tensor:
        i, two, three, o = tensor.chunk(4)
        return torch.cat([i, three, two, o])

    state = {k: in_order(v) if k.startswith("core") else v for k, v in source.state_dict().items()}
    if not wrong:
        state = {k: in_order(v) if k.startswith("core") else v for k, v in state.items()}
    model.load_state_dict(state)
    other = near(language, seed + 1, 0.2)
    text_outcome(run, model, other)
    train(run, model, adam(model, 1e-3), lambda: other.rows(12, 24), next_loss, 30)


@fault(
    "r7-vectors-in-another-order",
    LOADING,
    (
        r"embed|vector|words|vocabulary|pretrain|load",
        r"order|permut|vocabulary|mismatch|not (fit|match)|wrong row|other word|another word|shuffl|random|as (if )?(un|not )train|no better",
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
        r"init|signal|activation|gradient|std|deviation|drawn|output",
        r"small|shrink|shrank|vanish|\bfan|fade|tiny|die|near zero|weak|does not depend",
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
        r"\bplaces\b|position|load|checkpoint|pretrain|body",
        r"interpol|stretch|class token|resiz|grid|mismatch|not (fit|match)|as (if )?(un|not )train|no better|random|worse",
    ),
)
def places_stretched_with_the_class_token(run: Run, wrong: bool) -> None:
    """A vision transformer is loaded for larger pictures. All 17 learned places, the class token's too, are stretched to 37
    as one line. Only the head is tuned. The twin leaves the class token's out and stretches the others as a grid."""
    source, model = Patches(4), Patches(6)
    taught(source, lambda: spots(48, 4), classify, 350, 2e-3)
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
        r"rotary|frequenc|position|\bplaces\b|buffer|order of",
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
