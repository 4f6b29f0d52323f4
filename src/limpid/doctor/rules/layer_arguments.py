"""Layers whose arguments are not what their documentation asks for: masks, axes, states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, on_step
from limpid.doctor.rules.arguments import found
from limpid.doctor.rules.padding import MASK_INVERTED

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "layer_arguments"
COST = "a look at the arguments of a few functions, in one forward pass of sampled steps"

MASK_ADDED = Rule(
    "mask-is-added",
    FAMILY,
    detects="A mask of numbers 0 and 1 that an attention adds to its scores: it hides nothing.",
    equation=r"\mathrm{softmax}(q k^\top / \sqrt d + m),\; m \in \{0, 1\}",
    source="documentation of scaled_dot_product_attention and MultiheadAttention",
    threshold="exact: a mask of a number format that nobody trains and that holds both 0 and 1, and nothing else",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="a mask of bool, or of 0 and -inf",
    explains=("not-causal", "loss-below-floor", "padding-counts", "loss-plateau", "documents-see-each-other"),
)

BATCH_FOR_TIME = Rule(
    "batch-axis-as-time",
    FAMILY,
    detects="Recurrent or attention layers that read from row to row of the batch, not along the sequence.",
    equation=r"(B, T, d) \;\text{read as}\; (T, B, d)",
    source="documentation of torch.nn.LSTM, GRU, RNN, MultiheadAttention and Transformer: batch_first",
    threshold="exact: inputs (B, T, …), outputs (B, number), B other than T, and every such layer reads T rows of B "
    "steps",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="layers that read B rows of T steps",
    explains=("batch-leaks", "row-number-counts", "positions-not-read", "loss-plateau", "nothing-learned"),
)

STATES_EXCHANGED = Rule(
    "states-exchanged",
    FAMILY,
    detects="An LSTM that is given the hidden state and the cell state of another the wrong way round.",
    equation=r"(c, h) \;\text{instead of}\; (h, c)",
    source="documentation of torch.nn.LSTM",
    threshold="exact: the very memory of a c, in the place of h",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="states in the order in which they were returned",
    explains=("loss-plateau",),
)

AXIS_NOT_NAMED = Rule(
    "softmax-over-rows",
    FAMILY,
    detects="A softmax whose axis nobody named: over three axes it runs along the first, the rows of the batch.",
    equation=r"\textstyle\sum_b p_{btc} = 1",
    source="documentation of torch.nn.Softmax: dim; torch.nn.functional._get_softmax_dim",
    threshold="exact: dim is None, and there are three axes",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="a dim",
    explains=("batch-leaks", "loss-plateau", "loss-formula-unusual", "normalised-over-another-axis", "not-causal"),
)

DROPPED_LAST = Rule(
    "dropout-before-loss",
    FAMILY,
    detects="Dropout after the last layer: outputs that are 0 by chance go into the loss.",
    equation=r"\hat y_i = 0 \;\text{with probability}\; p",
    source="Srivastava et al. 2014, section 4 (dropout of units that another layer reads), jmlr.org/papers/v15",
    threshold="exact: what a loss is given was made by dropout, at two looks",
    cost=COST,
    meant="noise on the outputs: classes dropped at random, or two passes that are to agree",
    needs=(Probe.ARGUMENTS,),
    refuted_by="a layer between dropout and loss",
    explains=("loss-plateau", "initial-loss-off", "nothing-learned"),
)

HEADS_FOR_TIME = Rule(
    "heads-as-positions",
    FAMILY,
    detects="Attention among the heads of each position: the axes of heads and positions are exchanged.",
    equation=r"(B, T, h, d) \;\text{where}\; (B, h, T, d) \;\text{is asked for}",
    source="documentation of scaled_dot_product_attention: query (N, …, Hq, L, E)",
    threshold="exact: inputs of tokens (B, T) or of numbers (B, T, …), and every attention of the pass is called with "
    "queries (B, T, other than T, d)",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="queries whose last axis but one is that of the positions",
    explains=("positions-not-read", "loss-plateau", "nothing-learned", "scores-not-scaled"),
)

CAUSAL_FROM_THE_START = Rule(
    "causal-from-the-first-key",
    FAMILY,
    detects="A causal attention of fewer queries than keys, which counts both from the first one on.",
    equation=r"j \le i \;\text{instead of}\; j \le i + (S - L)",
    source="documentation of scaled_dot_product_attention: is_causal, upper left bias of a mask that is not square",
    threshold="exact: is_causal=True and fewer queries than keys, in a pass that is learned from, at two looks",
    cost=COST,
    meant="queries of the first positions alone, each of which sees the keys up to its own",
    needs=(Probe.ARGUMENTS,),
    refuted_by="as many queries as keys",
    explains=("loss-plateau",),
)

BEHIND_THE_END = Rule(
    "read-behind-the-end",
    FAMILY,
    detects="Packed sequences of which the padding behind the end is read, not the last step.",
    equation=r"o_{i, T} = 0 \;\text{for}\; T_i < T",
    source="documentation of torch.nn.utils.rnn.pad_packed_sequence: padding_value",
    threshold="exact: as many rows with one and the same output, to the bit, as there are sequences shorter than the "
    "longest, two at least, at two looks",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="outputs that differ from row to row",
    explains=("loss-plateau", "nothing-learned", "class-without-gradient"),
)

NORM_EPSILON = Rule(
    "norm-epsilon-dominates",
    FAMILY,
    detects="A norm whose ε is larger than the variance that it should only protect: it does not normalise.",
    equation=r"\hat x = (x - \mu) / \sqrt{\sigma^2 + \varepsilon},\; \varepsilon > \sigma^2",
    source="documentation of torch.nn.LayerNorm, RMSNorm, BatchNorm1d: eps, for numerical stability",
    threshold="an ε of a hundredth or more that is larger than the variance of half of the rows (or channels), at "
    "three looks",
    cost=COST,
    meant="a norm with a floor, as of divisive normalisation: what is small is to stay small",
    needs=(Probe.ARGUMENTS,),
    refuted_by="a variance above ε",
    explains=("gradient-vanishes-with-depth", "loss-plateau", "positions-not-read"),
)

OFF_THE_GRID = Rule(
    "grid-outside-picture",
    FAMILY,
    detects="grid_sample with points outside of the picture, which read as 0.",
    equation=r"|x| > 1",
    source="documentation of torch.nn.functional.grid_sample: grid in [-1, 1]",
    threshold="more than nine tenths of the points, with padding_mode='zeros', at two looks",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="points within [-1, 1]",
    explains=("gradient-vanishes-with-depth", "loss-plateau", "nothing-learned"),
)

RULES_HERE = (
    MASK_ADDED,
    BATCH_FOR_TIME,
    HEADS_FOR_TIME,
    CAUSAL_FROM_THE_START,
    STATES_EXCHANGED,
    BEHIND_THE_END,
    AXIS_NOT_NAMED,
    DROPPED_LAST,
    NORM_EPSILON,
    OFF_THE_GRID,
)


@on_step(MASK_INVERTED, *RULES_HERE)
def layers_against_the_documentation(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for rule in (MASK_INVERTED, *RULES_HERE):
        yield from found(rule, record, history)
