"""Numerics: what number formats cannot hold, and what is not a number."""

from __future__ import annotations

from limpid.doctor.rule import Rule

FAMILY = "numerics"

RULES = (
    Rule(
        slug="scores-overflow-half",
        family=FAMILY,
        detects="Attention scores beyond what float16 can hold.",
        equation=r"s \max_i \lVert q_i \rVert \max_j \lVert k_j \rVert > 65504",
        source="Zeng et al. 2022 (GLM-130B), section 3.3, arXiv:2210.02414; Wortsman et al. 2023, arXiv:2309.14322",
        threshold="65504, the largest float16; fault at a score beyond it, warning at half of it or when the growth "
        "rate reaches it within 200 steps",
        cost="norms of queries and keys on sampled steps; one pass op by op when it breaks",
        needs=("model", "steps"),
        explains=("not-finite", "overflow-in-half", "loss-diverges", "gradient-explodes", "loss-spike"),
    ),
    Rule(
        slug="overflow-in-half",
        family=FAMILY,
        detects="A value beyond the largest number of a half-precision format.",
        equation=r"|x| > 65504 \;\text{(float16)},\; 3.4 \cdot 10^{38} \;\text{(bfloat16)}",
        source="IEEE 754-2019, table 3.5; transformers#5651",
        threshold="the format's largest number; exact: the operation has finite inputs and an infinite output, and "
        "the same operation in float32 is finite",
        cost="one pass op by op before the first step, and when it breaks",
        needs=("model", "break"),
        explains=(
            "not-finite",
            "loss-diverges",
            "loss-spike",
            "gradient-explodes",
            "gradient-cut",
            "step-without-gradients",
            "epsilon-dominates",
        ),
    ),
    Rule(
        slug="updates-lost-to-rounding",
        family=FAMILY,
        detects="Updates too small for the format of the weights: they round to nothing.",
        equation=r"|u| < \tfrac12 \mathrm{ulp}(w) = 2^{\lfloor \log_2 |w| \rfloor - 8} \;\text{in bfloat16}",
        source="Zamirai et al. 2020, section 3, arXiv:2010.06192",
        threshold="warning above 20 % of the elements, fault above 50 % or when every gain stands still: below half "
        "a step of the format an update is lost exactly",
        cost="a slice of each tensor before and after the update, on sampled steps",
        needs=("model", "optimizer"),
        explains=("loss-plateau", "update-not-as-predicted", "weights-never-change"),
    ),
    Rule(
        slug="attention-row-sees-nothing",
        family=FAMILY,
        detects="A query with no key to attend to: its softmax is 0/0.",
        equation=r"\sum_j \mathbb 1[\text{key } j \text{ visible to query } i] = 0",
        source="pytorch#41508, #103749; definition of softmax",
        threshold="exact: a count of rows",
        cost="one pass op by op, before the first step or when it breaks",
        needs=("model", "batch"),
        explains=("not-finite", "loss-diverges", "loss-spike"),
    ),
    Rule(
        slug="half-gradients-flush-to-zero",
        family=FAMILY,
        detects="Gradients below the smallest float16, without loss scaling: they become 0.",
        equation=r"p/N < 2^{-25} = 2.98 \cdot 10^{-8}",
        source="Micikevicius et al. 2017, section 3.2, arXiv:1710.03740",
        threshold="warning at 10 % of the logit gradients exactly 0 where 1/(N V) predicts it; probabilities are "
        "positive, so in exact arithmetic none is",
        cost="one backward pass, before the first step",
        needs=("model", "batch", "loss"),
        explains=("loss-plateau",),
    ),
    Rule(
        slug="epsilon-rounds-to-zero",
        family=FAMILY,
        detects="Adam's ε is 0 in the format of the parameters: an element without gradient becomes 0/0.",
        equation=r"\mathrm{fl}(\varepsilon) = 0",
        source="IEEE 754-2019; optax#1754, keras#11860",
        threshold="exact: ε rounded to the parameters' format is 0",
        cost="one rounding per parameter group",
        needs=("optimizer",),
        explains=("not-finite", "loss-diverges", "updates-lost-to-rounding"),
    ),
    Rule(
        slug="loss-not-scaled",
        family=FAMILY,
        detects="Gradients are divided by the loss scale, but the loss was not multiplied by it.",
        equation=r"g^{\text{used}} = g / s",
        source="definition; the order of scale, backward and step",
        threshold="exact: no scale before the scaler's step, 2 steps in a row; or weights of the tokens that "
        "add up to 1 in the gradient, not to the scale",
        cost="none: event counters",
        needs=("scaler", "steps"),
        explains=("epsilon-dominates", "loss-plateau", "update-not-as-predicted", "learning-rate-too-low"),
    ),
    Rule(
        slug="loss-scale-collapsed",
        family=FAMILY,
        detects="Loss scaling skips step after step: gradients are not finite at any scale.",
        equation=r"s_{t+1} = s_t / 2 \;\text{at every non-finite gradient}",
        source="Micikevicius et al. 2017, section 3.2, arXiv:1710.03740",
        threshold="more than 10 skips in a row (2^10 of scale should cure any overflow of scaling), or more than 5 % "
        "of the steps after step 100 (growth every 2000 steps skips 0.05 %)",
        cost="none: the scaler counts",
        needs=("scaler", "steps"),
        explains=("loss-plateau",),
    ),
    Rule(
        slug="not-finite",
        family=FAMILY,
        detects="A loss, gradient or weight that is not a number, with the operation that made it first.",
        equation=r"\text{first op with finite inputs and a non-finite output}",
        source="definition",
        threshold="exact",
        cost="the gradient norm is read anyway; one pass op by op when it breaks",
        needs=("steps",),
        explains=("loss-diverges", "loss-spike", "gradient-explodes", "loss-plateau"),
    ),
    Rule(
        slug="gradient-is-not-the-gradient",
        family=FAMILY,
        detects="A hand-written, fused or compiled backward pass whose gradient is not that of its forward pass.",
        equation=r"\frac{L(\theta + \varepsilon d) - L(\theta - \varepsilon d)}{2 \varepsilon\, g \cdot d} = 1",
        source="central difference along a direction; pytorch#114109",
        threshold="0.9 … 1.1 after shrinking ε twice: the error of a central difference falls with ε², so that a "
        "ratio that does not approach 1 is not truncation",
        cost="two to six forward passes and one backward pass, before the first step",
        needs=("model", "batch", "loss"),
        explains=("gradient-ascent", "loss-plateau", "loss-diverges"),
    ),
)
