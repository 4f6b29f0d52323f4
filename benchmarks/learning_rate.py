"""What `limpid plan rate` suggests, against training at a tenth of it, at it and at ten times it.

    python benchmarks/learning_rate.py [OPTIMIZER …]

A model of 20,000 parameters on text of few words, 300 steps; about two minutes for an optimizer.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
FOLDER = Path(tempfile.mkdtemp())
os.environ["LIMPID_CACHE"] = str(FOLDER / "cache")
os.chdir(FOLDER)

import limpid  # noqa: E402
from limpid.training.rate_sweep import rate_curve  # noqa: E402
from small import config, corpus  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizers", nargs="*", metavar="OPTIMIZER", default=["adamw", "muon", "momentum", "sgd"])
    given = parser.parse_args()
    text = corpus(FOLDER / "corpus")
    for optimizer in given.optimizers:
        update = {"optimizer": optimizer, "warmup_steps": None}
        asked = config(text, update=update, batch_size=8, model={"context_length": 32}, eval_steps=0, doctor=False)
        began = time.perf_counter()
        curve = rate_curve(asked, 1e-6, 100.0, 200)
        seconds = time.perf_counter() - began
        print(f"{optimizer}: suggested {curve.suggested}, steepest {curve.steepest:.2g}, "
              f"lowest loss at {curve.lowest:.2g}")  # fmt: skip
        print(f"  largest stable {curve.stable:.2g}; {seconds:.0f} s")
        for factor in (0.1, 1, 10) if curve.suggested else ():
            rate = factor * curve.suggested
            chosen = dataclasses.replace(
                asked,
                update=dataclasses.replace(asked.update, learning_rate=rate),
                run=dataclasses.replace(asked.run, max_steps=300, save_steps=0),
            )
            loss = limpid.train(chosen, f"{optimizer}-{factor}").read_metrics().evaluations[-1]["eval_loss"]
            print(f"  at {rate:.2g} ({factor} ×): validation loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
