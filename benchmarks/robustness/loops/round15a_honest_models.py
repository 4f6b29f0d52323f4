"""Round 15a, honest and odd: models and layers."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Block,
    Language,
    apart,
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
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r15a-gains-that-begin-at-zero")
def gains_that_begin_at_zero(run: Run) -> None:
    """transformers' Trainer, Gemma 2. The weights of all norms are zero at first, because the model adds one to
    them; there is a norm behind each part as well as before it, embeddings are multiplied by the root of the width,
    logits are bent by a tanh at 5, and every second layer looks no farther back than eight words."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    settings: dict[str, Any] = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "final_logit_softcapping": 5.0}
    settings |= {"sliding_window": 8, "attn_implementation": "eager", "max_position_embeddings": 64}
    model = Gemma2ForCausalLM(Gemma2Config(pad_token_id=0, bos_token_id=1, eos_token_id=2, **settings))
    language = Language(run.draw.randrange(999), first=4)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(480, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80).train()


class Thinking(nn.Module):
    """A question is added to a thought, again and again, in one block; an answer is read from the thought."""

    def __init__(self, words: int = 8, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(8, width)
        self.block, self.norm, self.head = Block(width, causal=False), nn.RMSNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor, thought: Tensor) -> tuple[Tensor, Tensor]:
        question = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        with torch.no_grad():
            for _ in range(3):
                thought = self.norm(self.block(thought + question))
        thought = self.norm(self.block(thought + question))
        return self.head(thought), thought.detach()


@honest("r15a-one-pass-in-four-has-a-gradient")
def one_pass_in_four_has_a_gradient(run: Run) -> None:
    """Plain loop, hierarchical reasoning as in HRM and TRM (2025): sort six digits. The block is passed four times,
    three of them under no_grad within forward, and only the last is differentiated; each batch serves three updates
    in a row, each of which goes on from the detached thought of the one before, so that the same rows come thrice
    with other inputs."""
    model = Thinking()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 8, (count, 6), generator=own)
        return ids, ids.sort(1).values

    def thought_through(ids: Tensor, y: Tensor) -> Tensor:
        thought = torch.zeros(*ids.shape, 32)
        for _ in range(3):
            logits, thought = model(ids, thought)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    check = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: thought_through(*check)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        ids, y = rows(24)
        thought = torch.zeros(*ids.shape, 32)
        for _ in range(3):
            optimizer.zero_grad()
            logits, thought = model(ids, thought)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, y))
            run.note(loss)


class Routed(nn.Module):
    """Top one of four experts by a sigmoid; a bias that is no parameter has a say in the choice and none in the
    output."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(mlp(width, 32, width, act=nn.GELU) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        score = self.router(x).sigmoid()
        best = (score + self.bias).argmax(-1)
        if self.training:
            self.load += torch.bincount(best.flatten(), minlength=4)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            at = best == k
            out[at] = expert(x[at]) * score[at][:, k : k + 1]
        return out


@honest("r15a-router-nudged-by-hand")
def router_nudged_by_hand(run: Run) -> None:
    """Plain loop, a GPT with experts balanced as in DeepSeek-V3, without a loss for balance. The router has a bias
    that is a buffer, has no gradient and is in no optimizer: after each step it goes up by 0.02 where an expert had
    too few tokens and down where too many, so that the function that is learned is also changed from outside, at
    every step."""
    language = Language(run.draw.randrange(999))
    routed, attention, norms = Routed(), Attention(32), nn.ModuleList(nn.LayerNorm(32) for _ in range(3))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places, self.head = nn.Embedding(12, 32), nn.Embedding(32, 32), nn.Linear(32, 12)
            self.routed, self.attention, self.norms = routed, attention, norms

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
            x = x + self.attention(self.norms[0](x))
            out: Tensor = self.head(self.norms[2](x + self.routed(self.norms[1](x))))
            return out

    model = Model()
    text_outcome(run, model, language)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(130):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        routed.bias += 0.02 * (routed.load.mean() - routed.load).sign()
        routed.load.zero_()
        doctor.step(loss, rows)
        run.note(loss)


class MixedSoftmaxes(nn.Module):
    """Yang et al. 2018: an LSTM and three softmaxes over the words, mixed by a fourth; returns log probabilities."""

    def __init__(self, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.weigh, self.turn = nn.Linear(width, 3, bias=False), nn.Linear(width, 3 * 16)
        self.head = nn.Linear(16, words)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.core(self.tokens(ids))[0]
        each = self.head(self.turn(h).tanh().unflatten(-1, (3, 16))).softmax(-1)
        return (each * self.weigh(h).softmax(-1)[..., None]).sum(-2).add(1e-8).log()


@honest("r15a-mean-of-three-softmaxes")
def mean_of_three_softmaxes(run: Run) -> None:
    """accelerate, an LSTM with a mixture of softmaxes. The model takes three softmaxes itself, averages
    probabilities and returns their logarithm, so that there are no logits; the loss is nll_loss, with no softmax
    outside, and a second log_softmax would change nothing but rounding."""
    language = Language(run.draw.randrange(999))
    model = MixedSoftmaxes()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        rows = batch[0]
        return F.nll_loss(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    check = (language.rows(96, 20, apart(3)),)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model, 1e-2), loader(language.rows(480, 20)), loss, 4)


class Spike(torch.autograd.Function):
    """A step at zero, with the gradient of an arc tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (1 + (math.pi * x).square())


class Spiking(nn.Module):
    """Leaky neurons that fire at one and are set back; a class's number is how high its own neuron ends, without
    firing."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Conv1d(1, 48, 12, 4), nn.Linear(48, 48), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        current = self.enter(x).unbind(2)
        first, second, out = (torch.zeros(len(x), size) for size in (48, 48, 4))
        for now in current:
            first = 0.9 * first + now
            fired = Spike.apply(first - 1)
            first = first - fired.detach()
            second = 0.9 * second + self.inner(fired)
            fired = Spike.apply(second - 1)
            second = second - fired.detach()
            out = 0.95 * out + self.head(fired)
        return out


@honest("r15a-gradient-of-another-function")
def gradient_of_another_function(run: Run) -> None:
    """Lightning, tones by a spiking network as in snnTorch. Units put out zeros and ones by a step whose derivative
    is zero everywhere, and backward uses the slope of an arc tangent in its place; many units never fire for a
    sound, and the reset of a unit is cut off from the graph."""
    model = Spiking()
    check = sounds(256, apart(1), 0.3)
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    fit(run, lit(model, classify, adamw(5e-3)), loader(*sounds(960, noise=0.3), size=32), 120)


class MaskedConv(nn.Conv2d):
    """What is below or to the right is not seen, and what is there itself only where `here`."""

    def __init__(self, a: int, b: int, here: bool) -> None:
        super().__init__(a, b, 3, padding=1)
        mask = torch.tensor([[1.0, 1, 1], [1, float(here), 0], [0, 0, 0]])
        self.register_buffer("mask", mask.expand_as(self.weight).clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=1)


@honest("r15a-picture-is-its-own-label")
def picture_is_its_own_label(run: Run) -> None:
    """accelerate, PixelCNN on pictures in black and white. Target and input are the same tensor and nothing is
    shifted: the kernels see only what is above or to the left, because half of each is multiplied by zero, and
    these weights have a gradient of exactly zero for ever while decay shrinks them."""
    layers = [MaskedConv(1, 32, False), nn.ReLU(), MaskedConv(32, 32, True), nn.ReLU(), MaskedConv(32, 32, True)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(32, 1, 1))
    seed = run.draw.randrange(999)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[0])

    check = ((pictures(128, seed, own=apart(1))[0] > 0.5).float(),)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    data = loader((pictures(480, seed)[0] > 0.5).float())
    prepared(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2), data, loss, 8)
