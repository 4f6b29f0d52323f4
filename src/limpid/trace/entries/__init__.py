"""Any entry of any quantity, written out with its numbers: how it was made, and how its gradient came back."""

from limpid.trace.entries.backward import derive_gradient as derive_gradient
from limpid.trace.entries.entry import GRADIENT as GRADIENT
from limpid.trace.entries.entry import Entry as Entry
from limpid.trace.entries.entry import Reader as Reader
from limpid.trace.entries.entry import Source as Source
from limpid.trace.entries.forward import derive_entry as derive_entry
