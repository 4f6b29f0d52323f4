"""Any entry of any quantity, written out with its numbers: how it was made, and how its gradient came back."""

from limpid.tracing.entries import dora as dora
from limpid.tracing.entries import drawn as drawn
from limpid.tracing.entries.backward import derive_gradient as derive_gradient
from limpid.tracing.entries.entry import GRADIENT as GRADIENT
from limpid.tracing.entries.entry import Entry as Entry
from limpid.tracing.entries.entry import Reader as Reader
from limpid.tracing.entries.entry import Source as Source
from limpid.tracing.entries.forward import derive_entry as derive_entry
