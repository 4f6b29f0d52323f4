"""What is left of runs: how each stands, what differs between them, their curves, what their user wrote about them."""

from limpid.history.differences import differences as differences
from limpid.history.labels import Labels as Labels
from limpid.history.summary import Summary as Summary
from limpid.history.summary import summarise as summarise
