"""Distributed: what every rank should have in common, and what it should not."""

from __future__ import annotations

from limpid.doctor.rule import Rule

FAMILY = "distributed"

RULES = (
    Rule(
        slug="gradients-not-averaged",
        family=FAMILY,
        detects="Ranks that train alone: their weights drift apart.",
        equation=r"h(\theta_r) \neq h(\theta_{r'}) \;\text{after the step, equal before}",
        source="Li et al. 2020, section 3, arXiv:2006.15704",
        threshold="exact: sums in float64 of sampled elements differ after the first update",
        cost="one all-gather of 8 numbers per rank, at the first steps and every 50",
        needs=("ranks", "steps"),
        explains=("ranks-start-apart",),
    ),
    Rule(
        slug="ranks-start-apart",
        family=FAMILY,
        detects="Ranks that start from different weights.",
        equation=r"\theta_r(t) - \theta_{r'}(t) = \text{const}",
        source="Li et al. 2020, section 3, arXiv:2006.15704",
        threshold="exact: sums in float64 of sampled elements differ before the first update",
        cost="one all-gather of 8 numbers per rank, once",
        needs=("ranks",),
        explains=("gradients-not-averaged",),
    ),
    Rule(
        slug="ranks-same-data",
        family=FAMILY,
        detects="Ranks that read the same rows.",
        equation=r"S = 0 \;\text{as}\; |g_b|^2 = |g_B|^2",
        source="McCandlish et al. 2018, eq. A.2, arXiv:1812.06162; row hashes",
        threshold="exact: half or more of the row hashes of a step in common, in 2 steps",
        cost="one all-gather of up to 64 hashes per rank, at the first steps and every 50",
        needs=("ranks", "batch", "steps"),
    ),
    Rule(
        slug="rank-computes-wrong",
        family=FAMILY,
        detects="One rank whose gradient is unlike the others' before averaging: broken hardware or memory.",
        equation=r"z_r = (\log \lVert g_r \rVert - \mathrm{median}) / (1.48\, \mathrm{MAD}) > 8",
        source="Dubey et al. 2024, section 3.3.4, arXiv:2407.21783; pytorch#84803",
        threshold="not finite on one rank alone, or 1000 times the other ranks and this rank's own past",
        cost="one all-gather of 8 numbers per rank, where gradients can be seen before they are averaged",
        needs=("ranks", "steps"),
        explains=("loss-spike", "not-finite", "gradient-explodes", "loss-diverges"),
    ),
)
