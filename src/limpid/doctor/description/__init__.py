"""What a loop does, told in the order of a step, for its author to hold against what it is meant to do."""

from limpid.doctor.description.chance import chance
from limpid.doctor.description.columns import columns
from limpid.doctor.description.description import Description, Line, described
from limpid.doctor.description.entered import entered
from limpid.doctor.description.influence import by_distance, by_pixel
from limpid.doctor.description.others import moves
from limpid.doctor.description.own_backwards import own_backwards
from limpid.doctor.description.places import places
from limpid.doctor.description.reach import reach
from limpid.doctor.description.reach_back import reach_back
from limpid.doctor.description.rounding import rounding
from limpid.doctor.description.scales import scales
from limpid.doctor.description.series import series
from limpid.doctor.description.so_far import SoFar
from limpid.doctor.description.state_before import state_before

__all__ = [
    "Description",
    "Line",
    "SoFar",
    "by_distance",
    "by_pixel",
    "chance",
    "columns",
    "described",
    "entered",
    "moves",
    "own_backwards",
    "places",
    "reach",
    "reach_back",
    "rounding",
    "scales",
    "series",
    "state_before",
]
