"""Loss: which formula the code computes, re-derived from logits, batch and the value itself."""

from __future__ import annotations

from limpid.doctor.rule import Rule

FAMILY = "loss"
REDERIVED = "the loss re-derived: of all candidates one value agrees to 1e-4 (float32) or 2^-7 (bfloat16)"

RULES = (
    Rule(
        slug="loss-mean-of-means",
        family=FAMILY,
        detects="Micro-batches averaged before they are averaged: tokens of short ones count more.",
        equation=r"w_j = N / (k\, n_j),\; \max w / \min w = n_{\max} / n_{\min}",
        source="huggingface.co/blog/gradient_accumulation (2024); transformers#35203",
        threshold="label counts of a step that differ by more than 1.5, and losses that are each micro-batch's own "
        "mean over k (re-derived to 1e-4)",
        cost="label counts; one cross-entropy per micro-batch on sampled steps",
        needs=("batch", "loss", "steps"),
        explains=("loss-formula-unusual",),
    ),
    Rule(
        slug="loss-summed",
        family=FAMILY,
        detects="A sum over tokens where a mean is meant.",
        equation=r"L_0 = N \ln V",
        source=REDERIVED,
        threshold="the ratio to the mean is the number of labels to 1e-4",
        cost="one cross-entropy on the first step",
        needs=("batch", "loss"),
        explains=("clipped-every-step", "loss-formula-unusual", "initial-loss-off", "gradient-explodes"),
    ),
    Rule(
        slug="accumulation-not-divided",
        family=FAMILY,
        detects="Gradients of k micro-batches are added, each being a full mean: the step is k times too large.",
        equation=r"g = \sum_{j=1}^k \nabla L_j \;\text{instead of}\; \tfrac1k \sum_j \nabla L_j",
        source=REDERIVED,
        threshold="k backward passes per step, each of whose roots is the plain mean of its micro-batch to 1e-4",
        cost="one cross-entropy per micro-batch on sampled steps",
        needs=("batch", "loss", "steps"),
        explains=("clipped-every-step",),
    ),
    Rule(
        slug="softmax-twice",
        family=FAMILY,
        detects="The loss takes probabilities for logits: softmax is applied twice.",
        equation=r"L \ge \ln(e + V - 1) - 1",
        source=REDERIVED,
        threshold="the value of cross-entropy of softmax(logits), or rows that are positive and sum to 1",
        cost="one cross-entropy on the first step",
        needs=("batch", "loss"),
        explains=("loss-plateau", "loss-formula-unusual", "half-gradients-flush-to-zero", "epsilon-dominates"),
    ),
    Rule(
        slug="loss-formula-unusual",
        family=FAMILY,
        detects="A loss that is none of the known formulas of its logits and labels, or a known but unusual one.",
        equation=r"L = f(z, y)",
        source=REDERIVED,
        threshold="a notice: smoothing, extra terms and weights are choices",
        cost="some twenty cross-entropies on the first step",
        needs=("batch", "loss"),
    ),
    Rule(
        slug="loss-broadcast",
        family=FAMILY,
        detects="Predictions (n, 1) and targets (n,) that broadcast to n² differences.",
        equation=r"\textstyle\sum_{ij} (\hat y_i - y_j)^2 \;\text{instead of}\; \sum_i (\hat y_i - y_i)^2",
        source="definition; NumPy's broadcasting rules",
        threshold="exact: shapes",
        cost="none: shapes of the loss's arguments",
        needs=("loss",),
        explains=("loss-plateau", "gradient-is-not-the-gradient"),
    ),
    Rule(
        slug="initial-loss-off",
        family=FAMILY,
        detects="A first loss that is not what fresh weights must give.",
        equation=r"E[L_0] = \ln V + \sigma^2 / 2",
        source="moment generating function of a Gaussian, σ the std of the model's own logits",
        threshold="0.5 nat: the formula is good to 0.08 for σ ≤ 2, and the mean over N labels scatters by σ/√N",
        cost="none: logits of the first forward pass",
        needs=("batch", "loss"),
    ),
    Rule(
        slug="loss-below-floor",
        family=FAMILY,
        detects="A loss below what text allows: the answer leaked into the input.",
        equation=r"L < 0.3 \ln 2 \;\text{nat per byte}",
        source="Shannon 1951 (0.6 … 1.3 bit per letter)",
        threshold="half of the lowest estimate for text never seen before; only on rows seen for the first time",
        cost="none: the loss and the row hashes",
        needs=("batch", "loss", "steps"),
    ),
    Rule(
        slug="logits-drift",
        family=FAMILY,
        detects="Logits that drift away as a whole: softmax does not see it, number formats do.",
        equation=r"\log Z = \log \textstyle\sum_v e^{z_v},\; |\log Z| > 30 \text{ or slope} > 0.1 / \text{step}",
        source="Chowdhery et al. 2022, section 5, arXiv:2204.02311; Wortsman et al. 2023, section 3.1.2",
        threshold="|log Z| above 30 and above its start, or a mean logit that moves by over 0.02 per step for 30 steps "
        "and by 5 in all; at 30 bfloat16 logits have a spacing of 1/8 nat",
        cost="log Z on 256 positions on sampled steps",
        needs=("model", "steps"),
        explains=("loss-spike", "loss-diverges", "overflow-in-half", "loss-below-floor"),
    ),
)
