"""What a model costs before it is trained: parameters, FLOPs, memory, time, money, and what it could reach."""

from limpid.plan.decode import critical_batch as critical_batch
from limpid.plan.decode import decode_step_seconds as decode_step_seconds
from limpid.plan.flops import flops_per_token as flops_per_token
from limpid.plan.parameters import parameter_count as parameter_count
