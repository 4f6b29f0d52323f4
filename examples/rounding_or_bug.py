"""Two ways to the same numbers differ: is that rounding, or a bug? Every quantity is held against a computed bound.

python examples/rounding_or_bug.py
"""

import json
from pathlib import Path

import limpid

config = limpid.TrainConfig(
    model=limpid.ModelConfig(d_model=64, num_layers=2, num_heads=4, context_length=32),
    run=limpid.RunConfig(max_steps=20, batch_size=8),
)
run = limpid.train(config)

# Honest pairs: they differ, and by no more than rounding explains.
for first, second in (":fp32", ":bf16"), (":plain", ":fast"), (":plain", ":cached"), ("", ":transformers"):
    print(limpid.compare(f"{run.path}{first}", f"{run.path}{second}"))

# A bug that many have met: the same weights, loaded with another base of the rotation. No rounding does that.
folder = limpid.export(run, run.path / "another-base")
settings = json.loads(Path(folder / "config.json").read_text())
settings["rope_parameters"]["rope_theta"] = 500_000.0
Path(folder / "config.json").write_text(json.dumps(settings))
found = limpid.compare(run, folder)
print(found)
for option in found.options:
    print(f"  the configurations differ: {option}")
