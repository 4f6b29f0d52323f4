"""One training step as mathematics: every operation forward and backward by hand, in NumPy float64.

Read step.py first, then what it is made of, in order: embedding, norm, linear, attention, mlp, loss, chain, update.
Losses of alignment (DPO, PPO, GRPO, …) are in `alignment`; what stands by itself (softmax of a list, entropy, singular
values, schedules) is in `foundations`. Their names can be reached from here too: `maths.softmax([2, 1, 0.5])`.
"""

import importlib
from typing import Any

from limpid.maths.activation import GELU as GELU
from limpid.maths.activation import GELUTanh as GELUTanh
from limpid.maths.activation import ReLU as ReLU
from limpid.maths.activation import Sigmoid as Sigmoid
from limpid.maths.activation import SiLU as SiLU
from limpid.maths.activation import SquaredReLU as SquaredReLU
from limpid.maths.activation import Tanh as Tanh
from limpid.maths.activation import gelu as gelu
from limpid.maths.activation import gelu_tanh as gelu_tanh
from limpid.maths.activation import relu as relu
from limpid.maths.activation import sigmoid as sigmoid
from limpid.maths.activation import silu as silu
from limpid.maths.activation import squared_relu as squared_relu
from limpid.maths.activation import swish as swish
from limpid.maths.activation import tanh as tanh
from limpid.maths.attention import CausalSoftmax as CausalSoftmax
from limpid.maths.attention import Mix as Mix
from limpid.maths.attention import Scores as Scores
from limpid.maths.catalogue import catalogue as catalogue
from limpid.maths.chain import Chain as Chain
from limpid.maths.dora import Magnitude as Magnitude
from limpid.maths.dora import RowLength as RowLength
from limpid.maths.dropout import Dropout as Dropout
from limpid.maths.embedding import Embedding as Embedding
from limpid.maths.embedding import LearnedPositions as LearnedPositions
from limpid.maths.embedding import Rotary as Rotary
from limpid.maths.embedding import SinusoidalPositions as SinusoidalPositions
from limpid.maths.formula import Formula as Formula
from limpid.maths.formula import FormulaOperation as FormulaOperation
from limpid.maths.linear import Add as Add
from limpid.maths.linear import AddScaled as AddScaled
from limpid.maths.linear import Linear as Linear
from limpid.maths.loss import LogSoftmax as LogSoftmax
from limpid.maths.loss import NegativeLogLikelihood as NegativeLogLikelihood
from limpid.maths.loss import next_token_loss as next_token_loss
from limpid.maths.loss import perplexity as perplexity
from limpid.maths.mlp import Gated as Gated
from limpid.maths.mlp import geglu as geglu
from limpid.maths.mlp import swiglu as swiglu
from limpid.maths.muon import Muon as Muon
from limpid.maths.muon import newton_schulz as newton_schulz
from limpid.maths.norm import BatchNorm as BatchNorm
from limpid.maths.norm import LayerNorm as LayerNorm
from limpid.maths.norm import RMSNorm as RMSNorm
from limpid.maths.norm import batch_norm as batch_norm
from limpid.maths.norm import layer_norm as layer_norm
from limpid.maths.norm import rms_norm as rms_norm
from limpid.maths.operation import Branch as Branch
from limpid.maths.operation import Operation as Operation
from limpid.maths.step import Step as Step
from limpid.maths.step import rule as rule
from limpid.maths.step import step as step
from limpid.maths.transformer import transformer as transformer
from limpid.maths.update import SGD as SGD
from limpid.maths.update import Adam as Adam
from limpid.maths.update import AdamW as AdamW
from limpid.maths.update import Momentum as Momentum
from limpid.maths.update import UpdateInput as UpdateInput
from limpid.maths.update import UpdateRule as UpdateRule
from limpid.maths.update import clip as clip


def __getattr__(name: str) -> Any:
    """Names of the foundations and of alignment."""
    for room in ("limpid.maths.foundations", "limpid.maths.alignment"):
        if name in vars(importlib.import_module(room)):
            return vars(importlib.import_module(room))[name]
    raise AttributeError(f"limpid.maths has no {name!r}: limpid.maths.catalogue() lists what there is")
