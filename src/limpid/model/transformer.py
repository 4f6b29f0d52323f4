"""The transformer: a residual stream that each block reads, norms, and writes back to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from limpid.config import ModelConfig
from limpid.errors import CheckpointError
from limpid.model.attention import Attention
from limpid.model.cache import Cache
from limpid.model.dropout import Dropout, seed_of
from limpid.model.embedding import Angles, Embed, Rotation
from limpid.model.formed import formed_again
from limpid.model.kernels.attention import short_masks
from limpid.model.kernels.native_attention import serves
from limpid.model.kernels.native_norm import native_joined_norm
from limpid.model.linear import Linear, row_lengths
from limpid.model.mlp import Mlp
from limpid.model.norm import is_joined, norm
from limpid.model.observe import FAST, Mode, Observe, Part, Path
from limpid.model.spread import whole
from limpid.quantities import parameters


class Block(Part):
    """x + attention(norm(x)), then x + mlp(norm(x)); or the norms after the sums, or one after the second sum."""

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__(f"blocks.{block}")
        self.placement, self.residual1 = config.norm_placement, config.attention_residual
        self.result = "residual2" if self.placement == "pre" else "norm2"
        self.norm1: nn.Module = nn.Identity() if self.placement == "after_mlp" else norm(config)
        self.attention = Attention(config, block)
        self.norm2 = norm(config)
        self.mlp = Mlp(config, block)

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        compute: torch.dtype,
        angles: Angles | None,
        mask: Tensor | None,
        cache: Cache | None = None,
        mode: Mode = FAST,
    ) -> Float[Tensor, "batch position d_model"]:
        pre = self.placement == "pre"
        x, read = self.normed("norm1", x, None, compute, mode) if pre else (x, x.to(compute))
        written = self.attention(read, angles, mask, cache, mode)
        joins = pre and self.residual1
        if not joins:
            x = self.report(mode, "residual1", x + written) if self.residual1 else written.to(x.dtype)
        if self.placement == "post":
            x = self.report(mode, "norm1", self.norm1(x, mode))
        x, read = self.normed("norm2", x, written if joins else None, compute, mode) if pre else (x, x.to(compute))
        x = self.report(mode, "residual2", x + self.mlp(read, mode))
        return x if pre else self.report(mode, "norm2", self.norm2(x, mode))

    def normed(
        self, name: str, x: Tensor, written: Tensor | None, compute: torch.dtype, mode: Mode
    ) -> tuple[Tensor, Tensor]:
        """The stream, after what is written to it, and its norm as products read it; the backward pass forms that again
        from the stream."""
        norm = getattr(self, name)
        if is_joined(norm, x, written, mode, compute):
            x, read = native_joined_norm(x, written, norm.weight, getattr(norm, "bias", None), norm.eps)
        else:
            x = x if written is None else self.report(mode, "residual1", x + written)
            read = norm(x, mode, compute)
        read = read if mode.plain else formed_again(read, lambda x: norm(x, mode, compute), x)
        return x, self.report(mode, name, read)


def run_block(block: nn.Module, x: Tensor, *rest: Any) -> Tensor:
    """A function of the block, so that what is compiled for one serves all."""
    y: Tensor = block(x, *rest)
    return y


@dataclass(frozen=True)
class Hidden:
    """Where a forward pass ends whose loss forms its own logits: the residual stream, normed."""

    stream: Float[Tensor, "batch position d_model"]
    output_matrix: Float[Tensor, "vocab d_model"]  # (1, d_model) where it gives a score
    value_matrix: Float[Tensor, "1 d_model"] | None = None

    @property
    def logits(self) -> Float[Tensor, "batch position vocab"]:
        """Formed now, for whoever looks."""
        return self.logits_of(self.stream)

    def some_logits(self, most: int) -> Float[Tensor, "some vocab"]:
        """Those of at least `most` positions, if there are so many, spread evenly: fewer than twice as many."""
        stream = self.stream.flatten(0, -2)
        return self.logits_of(stream[:: max(1, len(stream) // most)])

    def logits_of(self, stream: Float[Tensor, "*places d_model"]) -> Float[Tensor, "*places vocab"]:
        """The logits of some of the stream."""
        return F.linear(stream, self.output_matrix.to(stream.dtype))


def run_compiled(compiled: Callable[..., Tensor], block: Block, x: Tensor, *rest: Any) -> Tensor:
    """A compiled block, unaware of the observer, which sees its result: inside, there is nothing to see."""
    *arguments, mode = rest
    return block.report(mode, block.result, compiled(block, x, *arguments, FAST))


def run_recomputed(run: Callable[..., Tensor], draws: bool, block: Block, x: Tensor, *rest: Any) -> Tensor:
    """A block that keeps its input only, and where it draws masks the random state; the observer sees it once, not
    again when backward recomputes it."""
    *arguments, mode = rest
    y: Tensor = checkpoint(run, block, x, *arguments, mode.once(), use_reentrant=False, preserve_rng_state=draws)
    return y


class Transformer(nn.Module):
    """Fast twin of maths.transformer: tokens to logits.

    The residual stream has the precision of the parameters; matrix products run in `compute`.
    """

    is_decoder = True  # no position may see the token that it predicts

    def __init__(self, config: ModelConfig, compute: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.compute = config, compute
        self.title = "the model"  # where it came from, for messages
        self.embed = Embed(config)
        self.embed_dropout = Dropout("embed.dropped", config.dropout)
        self.rotation = Rotation(config) if config.positions == "rotary" else None
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.final_norm = norm(config) if config.norm_placement == "pre" else None
        rates = config.head == "score"
        self.logits = None if rates or config.tied else Linear(config.d_model, config.vocab_size, bias=False)
        self.score = Linear(config.d_model, 1, bias=False) if rates else None
        self.value = Linear(config.d_model, 1, bias=False) if config.head == "vocabulary_and_value" else None
        self.compiled: Callable[..., Tensor] | None = None
        self.recomputed = False
        self.launch: Callable[[], Hidden] | None = None  # the next pass as a whole, its loss and backward pass included
        self.mask_seed: int | None = None  # of what dropout leaves out in the next pass; without one any mask will do

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        cache: Cache | None = None,
        last_only: bool = False,
        path: Path = "fast",
        observe: Observe | None = None,
        form_logits: bool = True,
    ) -> Float[Tensor, "batch _ vocab"] | Hidden:
        """Logits of every position, or of the last one only; with a cache, `tokens` continue what it holds.

        A loss that forms its own logits calls the module too, so that hooks see the pass: `form_logits=False`.
        """
        if self.launch is not None and not form_logits:
            return self.launch()
        mode = Mode(path, observe, is_beside_output=not form_logits and self.score is None and self.logits is None)
        matrix = None if form_logits else self._read_by_loss()
        x = self.hidden(tokens, cache, mode)
        if matrix is not None:
            return Hidden(x, matrix, None if self.value is None else whole(self.value.weight))
        x = x[:, -1:] if last_only else x
        return mode.report("logits", F.linear(x, self.output_matrix.to(x.dtype)))

    def _read_by_loss(self) -> Float[Tensor, "vocab d_model"]:
        """The output matrix. As a view made before tokens are looked up its gradient comes after theirs, so that rows
        are added to it in its place."""
        matrix = self.output_matrix if self.score is None else whole(self.score.weight)
        again: Tensor = torch.ops.aten.alias(matrix)
        return again

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    def require_known(self, largest: int) -> None:
        """Raise CheckpointError when the largest id of a text is no token of the model."""
        if largest >= self.config.vocab_size:
            raise CheckpointError(
                f"{self.title}: token {largest} of the text lies outside its vocabulary of {self.config.vocab_size}: "
                "tokenizer and model do not belong together; give a model with its own tokenizer.json"
            )

    def diverged(self) -> CheckpointError:
        """The error for logits that are not numbers."""
        return CheckpointError(
            f"{self.title}: its logits are not numbers, for its weights diverged; take an earlier checkpoint"
        )

    @property
    def output_matrix(self) -> Float[Tensor, "vocab d_model"]:
        """Turns the last hidden state into logits; the token embedding itself when tied.

        Raises  CheckpointError for a model that has none
        """
        self.require_vocabulary()
        return whole(self.embed.tokens.weight if self.logits is None else self.logits.weight)

    def require_vocabulary(self) -> None:
        """Raise CheckpointError for a model that gives answers a score and predicts no token."""
        if self.score is not None:
            raise CheckpointError(
                f"{self.title} is a reward model: its head gives one score and predicts no token; give a model with "
                "head vocabulary, such as the one that it was trained from"
            )

    def hidden(
        self, tokens: Int[Tensor, "batch position"], cache: Cache | None = None, mode: Mode = FAST
    ) -> Float[Tensor, "batch position d_model"]:
        """The residual stream at its end, normed, in the format of matrix products."""
        count = tokens.shape[1]
        positions = torch.arange(count, device=tokens.device) if cache is None else cache.positions(count)
        x = self.entered(tokens, positions, mode)
        x = self.through(x, positions, range(len(self.blocks)), cache, mode)
        if cache is not None:
            cache.advance(count)
        return self.ended(x, mode)

    def entered(
        self, tokens: Int[Tensor, "batch position"], positions: Int[Tensor, "*rows position"], mode: Mode = FAST
    ) -> Float[Tensor, "batch position d_model"]:
        """The residual stream before the first block."""
        self._seed_masks(len(self.blocks))
        return self.embed_dropout(self.embed(tokens, positions, mode), mode)

    def through(
        self,
        x: Float[Tensor, "batch position d_model"],
        positions: Int[Tensor, "*rows position"],
        blocks: Sequence[int],
        cache: Cache | None = None,
        mode: Mode = FAST,
    ) -> Float[Tensor, "batch position d_model"]:
        """The residual stream after some blocks in a row."""
        angles = None if self.rotation is None else self.rotation.at(positions, x.dtype)
        windows = [self.config.window(i) for i in blocks]
        short = cache is None and not mode.plain and not serves(x.device.type, self.compute, self.config.sizes.d_head)
        masks = short_masks(set(windows), x, self.compute) if short else {}
        run = self._block_runner(mode)
        for i, window in zip(blocks, windows, strict=True):
            self._seed_masks(i)
            x = run(self.blocks[i], x, self.compute, angles, masks.get(window), cache, mode)
        return x

    def ended(
        self, x: Float[Tensor, "batch position d_model"], mode: Mode = FAST
    ) -> Float[Tensor, "batch position d_model"]:
        """The residual stream after the last block, normed, in the format of matrix products."""
        if self.final_norm is not None:
            x = mode.report("final_norm", self.final_norm(x, mode, self.compute))
        return whole(x.to(self.compute))  # what reads it knows no parts

    def _seed_masks(self, block: int) -> None:
        """Each block has masks of its own, whichever process computes the blocks before it."""
        if self.mask_seed is not None and self.training and self.config.drops:
            torch.manual_seed(seed_of(self.mask_seed, block))

    def _block_runner(self, mode: Mode) -> Callable[..., Tensor]:
        """How blocks are run: one kernel after the other, or, on the fast path of training, as was arranged."""
        if not self.training or mode.plain:
            return run_block
        run = run_block if self.compiled is None else functools.partial(run_compiled, self.compiled)
        return functools.partial(run_recomputed, run, self.config.drops) if self.recomputed else run

    def compile_blocks(self) -> None:
        """Let torch.compile fuse the passes over arrays inside a block; one compilation serves all of them."""
        self.compiled = torch.compile(run_block)


def initialise(model: Transformer, seed: int) -> Transformer:
    """Draw every parameter as the vocabulary says it starts, as a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    learned = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters(model.config):
            tensor = learned[parameter.name]
            if parameter.init == "normal":
                tensor.copy_(torch.randn(parameter.shape, generator=generator) * parameter.std)
            elif parameter.init == "row lengths":
                tensor.copy_(row_lengths(learned[f"{parameter.name.removesuffix('.lora_magnitude')}.weight"]))
            else:
                tensor.fill_(1.0 if parameter.init == "ones" else 0.0)
    return model
