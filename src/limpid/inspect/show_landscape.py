"""The loss around the weights, told in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from limpid.inspect.jacobians import Path
from limpid.inspect.landscape import Landscape
from limpid.inspect.show import heading


def tell(found: Landscape, console: Console) -> None:
    """Print all of it."""
    for lines in (_curvature(found), _curves(found), _noise(found), _gains(found)):
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)


def _curvature(found: Landscape) -> Iterator[Text]:
    sharp = found.sharpness
    yield heading(
        "curvature",
        f"of the loss {found.loss:.4f} nats per token on {found.rows} rows of {found.length} tokens, in float32",
    )
    yield Text(
        f"  largest eigenvalue of the Hessian   {sharp.largest:<9.4g} nats per squared length (sharpness; "
        f"within {sharp.largest_within:.1g} after {sharp.steps} Lanczos steps)"
    )
    yield Text(f"  smallest                            {sharp.smallest:<9.4g} (within {sharp.smallest_within:.1g})")
    yield Text(
        f"  mean of all {found.parameters:<24,}{sharp.mean:<9.3g} estimated from {len(sharp.runs)} random starts"
    )
    yield Text(
        f"  plain gradient descent is stable below a learning rate of 2/λ = {sharp.stable_rate:.3g} in the steepest "
        "direction (Adam rescales directions: it may exceed this)",
        "dim",
    )


def _curves(found: Landscape) -> Iterator[Text]:
    curves = found.curves
    middle = len(curves.at) // 2
    ends = [f"{values[0]:.2f} ← {values[middle]:.2f} → {values[-1]:.2f}" for values in curves.along]
    yield heading(
        "loss curves",
        f"nats per token, one filter-normalised step to each side (seed {found.seed}): {'; '.join(ends)}",
    )


def _noise(found: Landscape) -> Iterator[Text]:
    noise = found.noise
    yield heading("gradient noise", f"from {noise.sequences} sequences of {noise.length} tokens, one gradient each")
    if noise.gradient_squared > 0:
        yield Text(
            f"  noise scale {noise.scale:.3g} sequences = {noise.tokens:,.0f} tokens: where noise equals signal; "
            "larger batches help less and less"
        )
    else:
        yield Text("  the true gradient cannot be told from 0 with so few sequences: noise scale ∞", "yellow")
    yield Text(f"  |G|² {noise.gradient_squared:.3g} · variance of one sequence's gradient {noise.variance:.4g}")
    for row in noise.averaged:
        yield Text(
            f"  batch of {row.batch_size}   variance σ²/b = {row.predicted:<8.4g} predicted, measured "
            f"{row.dealt:<8.4g} for random sequences, {row.neighbours:<8.4g} for neighbours in the text"
        )


def _gains(found: Landscape) -> Iterator[Text]:
    yield heading("the way back", "length of a gradient before a block / after it, block 0 first; means are geometric")
    for way in (found.gradient, *found.ways):
        yield _way(way)
    yield Text("  freshly drawn weights, from narrow to wide", "dim")
    for way in found.fresh:
        yield _way(way)
    clip = found.clipping
    if clip.limit is None:
        said = "never clipped"
    else:
        said = f"{clip.after:.4g} after clipping to {clip.limit:g} ({clip.whose})"
    yield Text(f"  global norm of the gradient  {clip.before:.4g} before, {said}")


def _way(way: Path) -> Text:
    shown = way.gains if len(way.gains) <= 12 else way.gains[:12]
    gains = " ".join(f"{gain:.3g}" for gain in shown) + (" …" if len(way.gains) > 12 else "")
    style = "red" if "explodes" in way.verdict else "yellow" if "vanishes" in way.verdict else ""
    return Text.assemble(
        f"  {way.name:<38} mean {way.mean:<8.2g} after block 0 {way.later:<8.2g} ",
        (f"{way.verdict:<32} ", style),
        (gains, "dim"),
    )
