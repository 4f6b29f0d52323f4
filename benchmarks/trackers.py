"""What real trackers keep of a run that is resumed, read back from their own files: trackio's database, W&B's folder.

    python benchmarks/trackers.py [trackio] [wandb]

Nothing leaves the machine. Each must be installed: pip install 'limpid[trackio,wandb]'.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.mkdtemp())
os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": str(FOLDER / "trackio"), "LIMPID_CACHE": str(FOLDER / "cache")}
os.chdir(FOLDER)

import limpid  # noqa: E402
from limpid.training.trackers.tracker import identity  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trackers", nargs="*", metavar="TRACKER", default=["trackio", "wandb"])
    given = parser.parse_args()
    (FOLDER / "text.txt").write_text("the cat sees the dog; " * 400)
    options = {
        "data": {"paths": ["text.txt"], "tokenizer": "bytes"},
        "model": {"d_model": 24, "num_layers": 2, "num_heads": 3, "context_length": 16},
        "run": {"max_steps": 20, "eval_steps": 10, "sample_steps": 10, "save_steps": 10, "precision": "fp32"},
    }
    for name in given.trackers:
        options["run"]["report_to"] = [name]
        began = time.perf_counter()
        run = limpid.train(options, name)
        limpid.resume(f"{run.path}@10")  # steps 11 … 20 are taken again
        print(f"{name}: {time.perf_counter() - began:.1f} s for 30 steps, started twice")
        logged = {"trackio": of_trackio, "wandb": of_wandb}[name](run)
        print(f"  losses {sorted(logged) == list(range(1, 21))} and equal to metrics.jsonl "
              f"{logged == {line['step']: line['loss'] for line in run.read_metrics().steps}}")  # fmt: skip


def of_trackio(run: Any) -> dict[int, float]:
    from trackio.sqlite_storage import SQLiteStorage

    name = f"{run.path.name}-{identity(run)}"
    assert SQLiteStorage.get_runs("limpid") == [name]
    lines = SQLiteStorage.get_logs("limpid", name)
    assert len(lines) == 36, f"{len(lines)} of 30 steps, 3 evaluations and 3 samples"
    print(f"  {len(lines)} lines, keys {sorted({key for line in lines for key in line})}")
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def of_wandb(run: Any) -> dict[int, float]:
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "training")]
    import json

    from test_trackers import wandb_records

    logged = {}
    for file in sorted(run.path.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(file):
            if record.HasField("history"):
                line = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                logged |= {line["step"]: line["train/loss"]} if "train/loss" in line else {}
    return logged


if __name__ == "__main__":
    main()
