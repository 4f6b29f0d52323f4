"""Any entry of any quantity, written out with its numbers: how it was made, and how its gradient came back."""

from limpid.trace.cells.backward import backward_cell as backward_cell
from limpid.trace.cells.cell import GRADIENT as GRADIENT
from limpid.trace.cells.cell import Cell as Cell
from limpid.trace.cells.cell import Reader as Reader
from limpid.trace.cells.cell import Source as Source
from limpid.trace.cells.forward import forward_cell as forward_cell
