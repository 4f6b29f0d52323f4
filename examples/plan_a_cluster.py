"""Which size, how many tokens, how many devices, how long, for how much: and the equation behind each figure.

python examples/plan_a_cluster.py
"""

import limpid

BUDGET = 1e22  # FLOPs
PRICE = 2.5  # dollars per device and hour

print(f"{BUDGET:g} FLOPs are best spent on, by four published fits:")
for figure in limpid.plan(compute=BUDGET).figures:
    print(f"  {figure.name:<40} {figure}")

print("\nLlama 3 8B on 1T tokens:")
for devices in (8, 64, 512):
    plan = limpid.plan("llama-3-8b", devices=devices, device="h100", zero=3, tokens=1e12, recompute="full", price=PRICE)
    memory, time, cost = (plan.figure(name) for name in ("memory.total", "time.total", "time.cost"))
    print(f"  {devices:>4} × h100: {memory} on each, {time}, {cost}; {'fits' if plan.fits else 'does not fit'}")

print("\nand why:")
for line in plan.figure("memory.activations").why():
    print(f"  {line}")
