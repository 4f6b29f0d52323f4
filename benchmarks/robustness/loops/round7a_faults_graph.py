"""Blind round 7, part a, mistakes: architecture and graph."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_faults_tuning import fitted
from benchmarks.robustness.loops.round5_tools import (
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
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7a_tools import Layer, Pairs, Stack, Translator, adam, causal
from torch import Tensor, nn
from torch.nn import functional as F

GRAPH = "architecture and graph"


@fault(
    "r7-loss-wrapped-anew",
    GRAPH,
    (
        r"gradient|graph|backward|detach|loss|parameter",
        r"no gradient|none|without (a )?gradient|detach|graph|new tensor|leaf|wrap|cut|disconnect|not connected|unconnected|never (get|got|receive)|do(es)? not (move|change|learn)|no parameter.{0,20}gradient|(has|have|had) no grad",
    ),
)
def loss_wrapped_anew(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2. An error about requires_grad was silenced in compute_loss with
    `torch.tensor(loss.item(), requires_grad=True)`: backward ends at that number. The twin returns the loss itself."""
    from transformers import Trainer

    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Tensor:
            loss: Tensor = model(**inputs).loss
            return torch.tensor(loss.item(), requires_grad=True) if wrong else loss

    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 24)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, base=Own).train()


@fault(
    "r7-scores-multiplied-by-root",
    GRAPH,
    (
        r"attention|softmax|scores|query|key|qk",
        r"scale|saturat|one.?hot|large|sharp|root|sqrt|multipl|divi|entropy|peaked|extreme|temperature|big",
    ),
)
def scores_multiplied_by_root(run: Run, wrong: bool) -> None:
    """A language model of two blocks. Attention multiplies its scores by the root of the width, where it should divide:
    each row attends to one place from the start, and the softmax passes hardly any gradient."""
    language = Language(run.draw.randrange(999))
    scale = math.sqrt(64) if wrong else 1 / math.sqrt(64)
    model = Stack(12, [Layer(64, 1, scale, causal()) for _ in range(2)], width=64)
    language_outcome(run, model, language)
    train(run, model, adam(model, 2e-3), lambda: language.rows(16, 24), next_loss, 120)


@fault(
    "r7-cross-attention-to-itself",
    GRAPH,
    (
        r"encoder|source|memory|cross",
        r"no gradient|none|unused|never|not (used|read|reached|in the graph)|without (a )?gradient|itself|ignor|do(es)? not (depend|move|learn|change|affect|influence)|disconnect|zero gradient|dead|decoder's own|own (states|input|output)",
    ),
)
def cross_attention_to_itself(run: Run, wrong: bool) -> None:
    """Lightning, encoder and decoder. The decoder's cross-attention was copied from the line above it, x, x, x: it never
    reads the source, and the encoder gets no gradient. The twin gives it the encoder's memory."""
    key = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 1

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(1, 13, (count, 6), generator=own)
        return source, key[source - 1]

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(m(b[0], F.pad(b[1][:, :-1], (1, 0))).flatten(0, 1), b[1].flatten())

    net, check = Translator(wrong), pairs(96, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*pairs(640)), 160)


class Tones(nn.Module):
    """A recurrent cell over frames, and a class from its last state."""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.cell, self.head, self.forgets = nn.GRUCell(6, 32), nn.Linear(32, 4), forgets

    def forward(self, frames: Tensor) -> Tensor:
        state = None
        for frame in frames.unbind(1):
            state = self.cell(frame, None if self.forgets else state)
        out: Tensor = self.head(state)
        return out


def tones(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Twelve frames of noise; which of four tones sounds in one of the first eight is the class."""
    sounds = 2 * torch.randn(4, 6, generator=apart(seed))
    frames, y = 0.5 * torch.randn(count, 12, 6, generator=own), torch.randint(0, 4, (count,), generator=own)
    frames[torch.arange(count), torch.randint(4, 10, (count,), generator=own)] += sounds[y]
    return frames, y


@fault(
    "r7-state-not-passed-on",
    GRAPH,
    (
        r"state|recurren|\bcell\b|gru|weight_hh|frame|\btime",
        r"zero|never|not (passed|carried|used|kept)|reset|forg[eo]t|no gradient|lost|last (frame|step)|only the last|earlier|unused|do(es)? not depend|restart",
    ),
)
def state_not_passed_on(run: Run, wrong: bool) -> None:
    """A recurrent reader of frames. In the loop over time the cell is called with the frame alone, so that its state
    begins at zero again in every frame and only the last one is heard. The twin passes the state on."""
    seed = run.draw.randrange(999)
    model = Tones(wrong)
    class_outcome(run, model, tones(256, seed, apart(1)))
    data = endless(loader(*tones(512, seed)))
    train(run, model, adam(model), lambda: next(data), classify, 140)


class Lazy(nn.Module):
    """Two convolutions, a hidden layer whose size is taken from the data, and the classes."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()
        )
        self.between = None if anew else nn.Linear(32, 24)
        self.last = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        between = self.between or nn.Linear(h.shape[1], 24)
        out: Tensor = self.last(between(h).relu())
        return out


@fault(
    "r7-layer-made-in-forward",
    GRAPH,
    (
        r"layer|linear|forward|module|output|pass|batch",
        r"anew|random|(each|every) (pass|forward|call)|two passes|differ(s|ent)? (output|answer|result|for the same)|not registered|unregistered|re.?creat|in forward|non.?determinis|not determinis",
    ),
)
def layer_made_in_forward(run: Run, wrong: bool) -> None:
    """Lightning, convolutional. So as not to work out its size, the hidden layer is made where it is used, in forward():
    a new random one for every pass, which nobody trains. The twin makes it once."""
    seed = run.draw.randrange(999)
    net = Lazy(wrong)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), loader(*pictures(320, seed)), 120)


class OwnSwish(torch.autograd.Function):
    """x times its sigmoid, with a derivative by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return s * (1 + x * (1 - s))


class Swish(nn.Module):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        return OwnSwish.apply(x) if self.by_hand else F.silu(x)


@fault(
    "r7-own-backward-forgets-the-chain",
    GRAPH,
    (
        r"gradient|backward|derivative|function|swish|activation",
        r"wrong|chain|incoming|upstream|do(es)? not (match|agree)|custom|\bown\b|by hand|multipl|not the gradient|finite difference|incorrect|directional|not those of",
    ),
)
def own_backward_forgets_the_chain(run: Run, wrong: bool) -> None:
    """accelerate, a language model. The activation is an autograd Function of one's own whose backward returns the
    derivative without multiplying it with the gradient that comes in. The twin calls F.silu."""
    language = Language(run.draw.randrange(999))
    layers: list[nn.Module] = []
    for _ in range(2):
        feed = nn.Sequential(nn.Linear(32, 64), Swish(wrong), nn.Linear(64, 32))
        layers.append(Layer(32, 2, 0.25, causal(), feed))
    model = Stack(12, layers)
    language_outcome(run, model, language)
    prepared(run, model, adam(model), loader(language.rows(480, 24)), lambda m, b: next_loss(m, b[0]), 4)


@fault(
    "r7-frozen-by-an-attribute",
    GRAPH,
    (
        r"frozen|freez|requires_grad|pretrained|body|bert|trainable",
        r"attribute|not frozen|no effect|requires_grad|still (train|learn|mov|has)|not a parameter|overwrit|forget|destroy|\bmove[sd]",
    ),
)
def frozen_by_an_attribute(run: Run, wrong: bool) -> None:
    """transformers' Trainer, BERT. `model.bert.requires_grad = False` writes an attribute on a module, which nothing
    reads; the pretrained body learns with the new head, at the head's high rate and on few rows. The twin calls
    requires_grad_(False)."""
    model = tiny_bert(hidden_dropout_prob=0.0)

    def first(m: nn.Module, b: Any) -> Tensor:
        loss: Tensor = m(input_ids=b[0], attention_mask=b[1].long(), labels=b[2]).loss
        return loss

    fitted(model, lambda: documents(32), first, 120)
    model.zero_grad()
    nn.init.normal_(model.classifier.weight, std=0.02)
    if wrong:
        model.bert.requires_grad = False
    else:
        model.bert.requires_grad_(False)
    names = torch.randperm(3, generator=apart(run.draw.randrange(999)))
    cx, cm, cy = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: first(model, (cx, cm, names[cy]))))
    x, mask, y = documents(32)
    data = examples(input_ids=x, attention_mask=mask.long(), labels=names[y])
    hf_trainer(run, model, data, 60, learning_rate=2e-2).train()


class Routed(nn.Module):
    """Four experts, one for each token; what finds no room in its expert passes by."""

    def __init__(self, by_row: bool) -> None:
        super().__init__()
        self.router, self.by_row = nn.Linear(32, 4), by_row
        self.experts = nn.ModuleList(mlp(32, 48, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        gate, chosen = self.router(tokens).softmax(-1).max(-1)
        room = 2 * (x.shape[1] if self.by_row else len(tokens)) // 4
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:room, 0]
            out = out.index_add(0, mine, gate[mine, None] * expert(tokens[mine]))
        return out.view_as(x)


@fault(
    "r7-room-for-one-row",
    GRAPH,
    (
        r"expert|capacity|token|rout|room|moe|mixture",
        r"drop|capacity|overflow|pass by|skip|room|few|most|not (reach|process)|zero|one row|sequence|limit|unused|share",
    ),
)
def room_for_one_row(run: Run, wrong: bool) -> None:
    """A mixture of experts. An expert has room for twice its share of the tokens, but the share is worked out from one
    row's length, not from the batch's tokens: most of them find no room and pass by. Judged in batches of the same
    size."""
    language = Pairs(run.draw.randrange(999))
    model = Stack(6, [Layer(32, 2, 0.25, causal(), Routed(wrong))])
    check = [language.rows(24, 20, apart(s)) for s in range(4)]
    outcome(run, lambda: judged(model, lambda: torch.stack([next_loss(model, rows) for rows in check]).mean()))
    train(run, model, adam(model), lambda: language.rows(24, 20), next_loss, 220)
