"""How the engine's kernels round, in float64: the mathematics, and after it every tensor that a kernel stores."""

from limpid.tracing.kernels.kernel import Formats as Formats
from limpid.tracing.kernels.kernel import Kernel as Kernel
from limpid.tracing.kernels.select import formats_of as formats_of
from limpid.tracing.kernels.select import kernel_of as kernel_of
