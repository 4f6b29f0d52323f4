"""limpid from Python: what needs several rooms at once. Other public functions are those of their rooms."""

from limpid.api.models import export as export
from limpid.api.models import load as load
from limpid.api.plans import plan as plan
from limpid.api.plans import rehearse as rehearse
from limpid.api.runs import resume as resume
from limpid.api.runs import train as train
from limpid.api.steps import trace as trace
from limpid.api.tuning import tune as tune
