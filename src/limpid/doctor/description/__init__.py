"""What a loop does, told in the order of a step, for its author to hold against what it is meant to do."""

from limpid.doctor.description.description import Description, Line, described
from limpid.doctor.description.own_backwards import own_backwards
from limpid.doctor.description.places import neighbours, places
from limpid.doctor.description.reach import reach
from limpid.doctor.description.scales import scales
from limpid.doctor.description.so_far import SoFar
from limpid.doctor.description.state_before import state_before
from limpid.doctor.description.tried import tried

__all__ = [
    "Description",
    "Line",
    "SoFar",
    "described",
    "neighbours",
    "own_backwards",
    "places",
    "reach",
    "scales",
    "state_before",
    "tried",
]
