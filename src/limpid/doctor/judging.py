"""One stream of losses judged by its own past."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding


def judged_loss(losses: list[float], outside: int, z: float, step: int, rate_rose: bool) -> Iterator[Finding]:
    """A spike is a notice; what does not recover is a divergence."""
    if z > 6 and outside == 1 and not rate_rose and losses[-1] > 1.1 * median(losses[-21:-1]):
        before = median(losses[-21:-1])
        yield Finding(
            rule="loss-spike",
            severity="notice",
            step=step,
            where="loss",
            says=f"the loss jumps to {losses[-1]:.3g} from {before:.3g} (robust z = {min(z, 999):.0f}).",
            cause="a batch unlike the others, or a step too far",
            fix="nothing, if it recovers within 20 steps",
            sure=0.6,
            refuted_by="the same batch with an equal loss at other weights",
            evidence={"loss": losses[-1], "before": before, "z": z},
        )
    if len(losses) < 40:
        start, window = losses[0], losses[-20:]
    else:
        start, window = median(losses[:5]), losses[-20:]
    if len(losses) < 25:
        return
    now, best = min(window), min(losses)
    stays = outside >= 20
    above = min(window) > 1.02 * start + 0.02 and len(losses) > 30
    if (stays and now > 1.15 * median(losses[-60:-20] or [now])) or above:
        yield Finding(
            rule="loss-diverges",
            severity="fault" if above else "warning",
            step=step,
            where="loss",
            says=f"the loss has been at {now:.3g} or above for 20 steps, after {best:.3g} at its best and {start:.3g} "
            "at the start.",
            cause="the rate is too high for this point of the run, or what is fed changed",
            fix="go back 100 steps before the rise, lower the rate or skip those batches",
            sure=0.7,
            refuted_by=f"a loss back at {best:.3g}",
            evidence={"loss": now, "best": best, "start": start},
        )
