"""What the model computes, and what of it the gradient reaches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Inject, Loop, after
from benchmarks.doctor.models import ROTARY, Attend, anatomy, causal, set_attention, turn
from torch import Tensor, nn

PERIOD = 8
PLACES = {"gpt2": "transformer.wpe", "plain": "wpe"}
"""Where learned positions are kept."""


def attention(attend: Attend, blocks: list[int] | None = None) -> Inject:
    return lambda loop: after(loop, "build", lambda model: set_attention(model, attend, blocks))


def to_model(change: Callable[[nn.Module], None]) -> Inject:
    return lambda loop: after(loop, "build", change)


def everything(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No mask."""
    return F.scaled_dot_product_attention(query, key, value)


def one_ahead(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A mask with its diagonal off by one: each position sees the next."""
    visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril(1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def scale(of: Callable[[int], float]) -> Attend:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=of(q.shape[-1]))


def queries_only(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys are turned back: as if only queries had been rotated."""
    return F.scaled_dot_product_attention(query, turn(key, back=True), value, is_causal=True)


def two_layouts(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Queries rotate halves, keys neighbouring pairs."""
    key = turn(turn(key, back=True), interleaved=True)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def moved_backwards(loop: Loop) -> float:
    """Largest change of any earlier logit when one later token changes."""
    loop.prepare()
    tokens = loop.batch(0, 0)[0]
    changed, place = tokens.clone(), tokens.shape[1] // 2
    changed[:, place] = (changed[:, place] + 1) % loop.settings.vocab
    with torch.no_grad():
        before, after_ = (loop.forward((x, None))[:, :place] for x in (tokens, changed))
    return float((before - after_).abs().max())


def across_rows(loop: Loop) -> None:
    """A norm over the whole batch instead of each vector."""

    def mixed(model: nn.Module) -> None:
        anatomy(model).blocks[1].register_forward_hook(
            lambda module, given, out: of_output(out, lambda x: x - 0.1 * x.mean(0, keepdim=True))
        )

    after(loop, "build", mixed)


def rows_matter(loop: Loop) -> float:
    """Largest change of the first row's logits when the other rows change."""
    loop.prepare()
    tokens = loop.batch(0, 0)[0]
    changed = torch.cat((tokens[:1], tokens[1:].roll(1, 1)))
    with torch.no_grad():
        return float((loop.forward((tokens, None))[0] - loop.forward((changed, None))[0]).abs().max())


def over_rows(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Row and position mixed up, as without batch_first=True: each row attends to the rows before it."""
    turned = (x.transpose(0, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(*turned, is_causal=True).transpose(0, 2)


def scaled_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query / math.sqrt(query.shape[-1]), key, value, is_causal=True)


def one_place(loop: Loop) -> None:
    """Every position is given the first row of the table of positions."""

    def first_row(model: nn.Module) -> None:
        model.get_submodule(PLACES[loop.architecture]).register_forward_pre_hook(
            lambda module, given: (torch.zeros_like(given[0]),)
        )

    after(loop, "build", first_row)


def places_learned(loop: Loop) -> float:
    """Rows of the table of positions that get a gradient."""
    loop.prepare()
    loop.clear = lambda: None
    loop.step()
    gradient = loop.model.get_submodule(PLACES[loop.architecture]).weight.grad
    return float((gradient != 0).any(-1).sum())


def last_row_sees(loop: Loop) -> float:
    """Largest change of the last row's logits when the first row changes."""
    loop.prepare()
    tokens = loop.batch(0, 0)[0]
    changed = torch.cat((tokens[:1].roll(1, 1), tokens[1:]))
    with torch.no_grad():
        before, after_ = (loop.forward((x, None))[-1] for x in (tokens, changed))
    return float((before - after_).abs().max())


def of_output(out: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Modules return a tensor, or a tuple that begins with it."""
    return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)


def detached(model: nn.Module) -> None:
    anatomy(model).blocks[1].register_forward_hook(lambda module, given, out: of_output(out, Tensor.detach))


def block_without_gradient(model: nn.Module) -> None:
    block = anatomy(model).blocks[1]
    block.forward = torch.no_grad()(block.forward)


def frozen_by_name(model: nn.Module) -> None:
    """A name filter for "1" that was meant for block 10."""
    for block in anatomy(model).blocks[:2]:
        block.requires_grad_(False)


def never_called(model: nn.Module) -> None:
    width = anatomy(model).final_norm.weight.shape[0]
    model.adapter = nn.Sequential(nn.Linear(width, 16), nn.Linear(16, width))


def through_numpy(model: nn.Module) -> None:
    """An activation of the MLP of block 2 goes through NumPy."""
    anatomy(model).mlps[2].register_forward_hook(
        lambda module, given, out: torch.from_numpy(out.detach().cpu().numpy().clip(-50, 50)).to(out.device)
    )


def unreached(loop: Loop) -> float:
    """Elements without gradient after one backward pass."""
    loop.prepare()
    loop.clear = lambda: None
    loop.step()
    return float(sum(p.numel() for p in loop.model.parameters() if p.grad is None or not p.grad.any()))


def untied(loop: Loop) -> None:
    """The head becomes a copy of the embedding once the model is built."""

    def split(model: nn.Module) -> None:
        parts = anatomy(model)
        owner, name = parts.head_place
        weight = nn.Parameter(parts.embedding.weight.detach().clone())
        if parts.head is None:  # limpid: a tied model has no head module
            head = nn.Linear(*reversed(weight.shape), bias=False)
            head.weight = weight
            setattr(owner, name, head)
        else:
            parts.head.weight = weight

    after(loop, "build", split)


def apart(loop: Loop) -> float:
    """Distance of head and embedding after ten steps."""
    loop.run(steps=10)
    parts = anatomy(loop.model)
    if parts.head is None:
        return 0.0
    return float((parts.head.weight - parts.embedding.weight).detach().norm())


def score_ratio(loop: Loop) -> float:
    """Var(scores) / (Var q · Var k) at initialisation, read from the weights of each row's last query."""
    loop.prepare()
    seen: list[float] = []

    def probing(inner: Attend) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            eye = torch.eye(query.shape[-2], device=query.device).expand(*query.shape[:2], -1, -1)
            logs = inner(query, key, eye)[..., -1, :].clamp(min=1e-30).log()  # scores, up to a constant
            keys = key - key.mean(-2, keepdim=True)
            product = query[..., -1, :].square().mean() * keys.square().mean()
            seen.append(float((logs - logs.mean(-1, keepdim=True)).square().mean() / product))
            return inner(query, key, value)

        return attend

    for index, module in enumerate(anatomy(loop.model).attentions):
        set_attention(loop.model, probing(getattr(module, "attend", None) or causal), [index])
    with torch.no_grad():
        loop.forward(loop.batch(0, 0))
    return sum(seen) / len(seen)


def not_relative(loop: Loop) -> float:
    """How far the first block's scores of a periodic row change along its diagonals, as a share of their variance.

    Log-weights give scores up to a constant per query; neighbouring differences along a row are free of it.
    """
    loop.prepare()
    seen: list[Tensor] = []
    inner = getattr(anatomy(loop.model).attentions[0], "attend", None) or causal

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        eye = torch.eye(query.shape[-2], device=query.device).expand(*query.shape[:2], -1, -1)
        seen.append(inner(query, key, eye)[0, 0].double())
        return inner(query, key, value)

    set_attention(loop.model, attend, [0])
    period = torch.arange(97, 97 + PERIOD).repeat(loop.settings.positions // PERIOD)
    with torch.no_grad():
        loop.forward((period[None].to(loop.settings.device), None))
    logs = seen[0].log()
    steps = logs[1:, 1:] - logs[1:, :-1]
    kept = torch.ones_like(steps, dtype=torch.bool).tril()[:-PERIOD, :-PERIOD]
    moved = (steps[PERIOD:, PERIOD:] - steps[:-PERIOD, :-PERIOD])[kept]
    return float(moved.square().mean() / (2 * steps[:-PERIOD, :-PERIOD][kept].var()))


def deviation(factor: float) -> Inject:
    def larger(model: nn.Module) -> None:
        with torch.no_grad():
            for p in {id(p): p for p in model.parameters() if p.ndim >= 2}.values():
                p *= factor

    return to_model(larger)


def zero_mlps(model: nn.Module) -> None:
    """Both factors of the MLP's product start at zero: neither gets a gradient."""
    with torch.no_grad():
        for mlp in anatomy(model).mlps:
            for p in mlp.parameters():
                p.zero_()


def equal_units(model: nn.Module) -> None:
    """Every matrix of the blocks starts at one value: all units compute the same for ever."""
    with torch.no_grad():
        for block in anatomy(model).blocks:
            for p in block.parameters():
                if p.ndim >= 2:
                    p.fill_(0.01)


def rank_of_mlps(loop: Loop) -> float:
    """Rank of the first matrix of the first MLP after ten steps."""
    loop.run(steps=10)
    first = next(p for p in anatomy(loop.model).mlps[0].parameters() if p.ndim == 2)
    return float(torch.linalg.matrix_rank(first.detach()))


def first_loss(loop: Loop) -> float:
    loop.run(steps=1)
    return loop.losses[0] - math.log(loop.settings.vocab)


def without_residual(model: nn.Module) -> None:
    """x = f(x) instead of x + f(x): the attention takes its input out of what it writes."""
    parts = anatomy(model)
    for block, part in zip(parts.blocks, parts.attentions, strict=True):
        held: dict[str, Tensor] = {}

        def remember(module: nn.Module, given: Any, named: Any, held: dict[str, Tensor] = held) -> None:
            held["x"] = given[0] if given else named["hidden_states"]

        def take_out(module: nn.Module, given: Any, out: Any, held: dict[str, Tensor] = held) -> Any:
            return of_output(out, lambda y: y - held["x"])

        block.register_forward_pre_hook(remember, with_kwargs=True)
        part.register_forward_hook(take_out)


def passed_on(loop: Loop) -> float:
    """Smallest cosine of a block's input and output."""
    loop.prepare()
    seen: list[float] = []

    def look(module: nn.Module, given: Any, named: Any, out: Any) -> None:
        x = given[0] if given else named["hidden_states"]
        y = out[0] if isinstance(out, tuple) else out
        seen.append(float(F.cosine_similarity(x.flatten(1), y.flatten(1)).mean()))

    for block in anatomy(loop.model).blocks[1:]:
        block.register_forward_hook(look, with_kwargs=True)
    with torch.no_grad():
        loop.forward(loop.batch(0, 0))
    return min(seen)


LEAK = Exact("change of earlier logits when a later token changes", moved_backwards, above(1e-4))
CUT = Exact("elements without gradient", unreached, lambda bad, good: bad > good)
RELATIVE = Exact("change of scores along diagonals, share of their variance", not_relative, above(0.05))
SCALE = ("scores-not-scaled",)
UNREACHED = ("gradient-cut",)


def ratio(low: float, high: float) -> Exact:
    """s² · d_head at initialisation: 1 when s = 1/√d_head."""
    return Exact("Var(scores)/(Var q · Var k)", score_ratio, lambda bad, good: not low < bad / good < high)


FAULTS = (
    Fault("GRA-01", "no causal mask", attention(everything), ("not-causal",), LEAK),
    Fault("GRA-01 diagonal", "mask off by one", attention(one_ahead), ("not-causal",), LEAK),
    Fault("GRA-01 block", "no causal mask in the last block", attention(everything, [3]), ("not-causal",), LEAK),
    Fault("GRA-02", "detached after block 1", to_model(detached), UNREACHED, CUT),
    Fault("GRA-02 no_grad", "block 1 under no_grad", to_model(block_without_gradient), UNREACHED, CUT),
    Fault("GRA-02 numpy", "the MLP of block 2 through NumPy", to_model(through_numpy), UNREACHED, CUT),
    Fault("GRA-02 frozen", "two blocks frozen by a name filter", to_model(frozen_by_name),
          ("parameters-frozen",), CUT),
    Fault("GRA-02 unused", "a module that is never called", to_model(never_called),
          ("module-never-called",), CUT),
    Fault("GRA-03", "tied weights come apart", untied, ("tied-weights-apart",),
          Exact("distance of head and embedding after ten steps", apart, above(0)), {"tied": True}),
    Fault("GRA-04", "scores without 1/√d_head", attention(scale(lambda d: 1.0)), SCALE, ratio(0.5, 2)),
    Fault("GRA-04 small", "scores times 1/d_head", attention(scale(lambda d: 1 / d)), SCALE, ratio(0.5, 2)),
    Fault("GRA-04 model", "scores times 1/√d_model", attention(scale(lambda d: (2 * d) ** -0.5)), SCALE,
          ratio(0.7, 1.4)),
    Fault("GRA-04 twice", "queries divided by √d_head, and the scores too", attention(scaled_twice), SCALE,
          ratio(0.5, 2)),
    Fault("GRA-05", "rotary positions on queries only", attention(queries_only), ("rotary-not-relative",),
          RELATIVE, {"rotary": True}, architectures=ROTARY, why_not="GPT-2 has no rotary positions"),
    Fault("GRA-05 layouts", "queries and keys rotate different pairs", attention(two_layouts),
          ("rotary-not-relative",), RELATIVE, {"rotary": True}, architectures=ROTARY,
          why_not="GPT-2 has no rotary positions"),
    Fault("GRA-06", "weights N(0, 1)", deviation(50), ("initialisation-too-large",),
          Exact("first loss − ln V, nats", first_loss, above(1))),
    Fault("GRA-06 zero", "MLPs start at zero in both factors", to_model(zero_mlps),
          ("initialisation-degenerate",), CUT),
    Fault("GRA-06 equal", "all units of the blocks start equal", to_model(equal_units),
          ("initialisation-degenerate",),
          Exact("rank of an MLP matrix after ten steps", rank_of_mlps, lambda bad, good: bad < 0.5 * good)),
    Fault("GRA-07", "attention replaces the residual stream", to_model(without_residual),
          ("residual-missing",), Exact("cosine of a block's input and output", passed_on,
          lambda bad, good: bad < 0.3 < good)),
    Fault("GRA-08", "a block subtracts the mean over the batch", across_rows, ("batch-leaks",),
          Exact("change of row 0 when other rows change", rows_matter, above(1e-4))),
    Fault("GRA-08 axes", "attention over rows instead of positions", attention(over_rows), ("batch-leaks",),
          Exact("change of the last row when the first changes", last_row_sees, above(1e-6))),
    Fault("GRA-09", "every position gets the first row of the table", one_place, ("positions-ignored",),
          Exact("rows of the table that get a gradient", places_learned, lambda bad, good: bad == 1 < good),
          architectures=("gpt2", "plain"), why_not="rotary positions have no table"),
)  # fmt: skip
