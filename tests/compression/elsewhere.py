"""Compresses, or gives back what another process compressed: python -m tests.compression.elsewhere FOLDER

Of every model in the folder, with weights in every format. Fails when something does not come back.
"""

import io
import sys
from pathlib import Path

import torch
from tests.evaluation.small_models import small_model

from limpid.compression import compress_stream, decompress_stream


def main(folder: Path) -> None:
    for file in sorted(folder.glob("*.pt")):
        saved = torch.load(file)
        one = small_model(context=32, **saved["sizes"])
        one.transformer.load_state_dict(saved["weights"])
        for weights in ("fp32", "bf16", "int8"):
            made, restored = file.with_suffix(f".{weights}"), io.BytesIO()
            if not made.exists():
                with made.open("wb") as target:
                    compress_stream(
                        one.transformer, one.tokenizer, one.start, io.BytesIO(saved["content"]), target,
                        name=file.stem, weights=weights,
                    )  # fmt: skip
                print("compressed", made.name)
                continue
            with made.open("rb") as source:
                decompress_stream(one.transformer, one.tokenizer, one.start, source, restored, where=made.name)
            assert restored.getvalue() == saved["content"]
            print("restored", made.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
