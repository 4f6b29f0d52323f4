"""Mistakes in the model's code and its first weights."""

from benchmarks.robustness.loops.plan import FUTURE, Plan, slip, swap

slip("no-mask", "attention without a causal mask", FUTURE)

slip("mask-other-triangle", "triu in place of tril", FUTURE)

slip("masked-with-zero", "masked scores set to 0, not to minus infinity", FUTURE)

slip(
    "mask-after-softmax",
    "the mask multiplies softmax's output, whose rows no longer sum to one",
    FUTURE + r"|sum to|after (the )?softmax",
)

slip("softmax-over-queries", "softmax along the queries' axis", FUTURE + r"|softmax|axis|dim\b|sum to")

slip(
    "heads-by-view",
    "heads split by view, without a transpose: tokens are mixed",
    FUTURE + r"|head|transpos|view|reshap",
)

slip("norm-over-time", "layer norm along the sequence", FUTURE + r"|norm")

slip(
    "batch-norm",
    "batch norm in a causal model: statistics of other rows and later tokens",
    FUTURE + r"|batch ?norm|other rows|across",
)

slip("positions-all-zero", "every position gets position 0's embedding", r"position", positions="learned", layers=1)

slip("rope-on-queries-only", "keys are not rotated", r"rope|rotary|rotat|position|key", positions="rope")

slip(
    "constant-init",
    "all linear layers start at one constant",
    r"symmetr|constant|identical|same (value|start|row)|equal|init|duplicate",
)

slip("dead-relu", "ReLU's biases start at -8", r"dead|relu|never (active|fire)|zero|unit|inactive", kind="honest-relu")

slip(
    "hidden-detached",
    "hidden states detached before the head",
    r"detach|no gradient|without (a )?gradient|grad|not trained|frozen|cut",
)

swap(
    "init-of-1",
    "model",
    "all weights drawn with standard deviation 1, head tied",
    r"init|standard deviation|\bstd|too large|first loss|initial loss|ln|log\(|uniform|chance",
    Plan(shape={"tied": True}),
    Plan(shape={"tied": True, "init": 1.0}),
)

swap(
    "dropout-of-0.9",
    "model",
    "dropout=0.9, where the share kept was meant",
    r"dropout|drop",
    Plan(shape={"dropout": 0.1}),
    Plan(shape={"dropout": 0.9}),
)
