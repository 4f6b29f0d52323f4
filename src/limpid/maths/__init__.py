"""The step as mathematics: every operation forward and backward by hand, NumPy float64."""

from limpid.maths.chain import Chain as Chain
from limpid.maths.norm import LayerNorm as LayerNorm
from limpid.maths.norm import RMSNorm as RMSNorm
from limpid.maths.operation import Branch as Branch
from limpid.maths.operation import Operation as Operation
from limpid.maths.operation import catalogue as catalogue
