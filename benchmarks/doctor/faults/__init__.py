"""All faults, family by family."""

from benchmarks.doctor.fault import Fault
from benchmarks.doctor.faults import configuration, data, distributed, graph, loss, numerics, optimisation

FAULTS: tuple[Fault, ...] = (
    *numerics.FAULTS,
    *optimisation.FAULTS,
    *data.FAULTS,
    *graph.FAULTS,
    *loss.FAULTS,
    *distributed.FAULTS,
    *configuration.FAULTS,
)
