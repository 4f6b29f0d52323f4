"""Generation speed: limpid beside transformers' generate, the same weights, batch 1, greedy, fp32, in turn.

python benchmarks/generate.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from limpid.config import ModelConfig, Sampling
from limpid.data.tokenizer import byte_tokenizer
from limpid.generate import generate
from limpid.model import Decoder, Transformer, initialise
from limpid.model.convert import save_folder

VOCAB_SIZE, NEW_TOKENS = 2048, 100
PROMPT = "def prompt(self):"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="generations of each side, taken in turn")
    rounds = parser.parse_args().rounds
    model = initialise(Transformer(ModelConfig(vocab_size=VOCAB_SIZE)), 0)
    ours = Decoder(model)
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        save_folder(Path(folder) / "model", model.config, model.state_dict(), tokenizer_json=None, end_of_text=None)
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model").eval()
    prompt = torch.tensor([tokenizer.encode(PROMPT)])

    def limpid_side() -> list[int]:
        tokenizer.end_of_text = None  # an untrained model may draw it; both sides are to write the same length
        with torch.inference_mode():
            return ids_of(ours, prompt)

    def transformers_side() -> list[int]:
        made = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        return made[0, prompt.shape[1] :].tolist()

    def ids_of(model: Decoder, prompt: torch.Tensor) -> list[int]:
        return list(generate(model, Ids(), [PROMPT], Sampling(NEW_TOKENS, 0.0))[0].tokens)

    class Ids:
        """The bytes of the prompt, and no text for ids that no tokenizer has."""

        end_of_text = None

        def encode(self, text: str) -> list[int]:
            return tokenizer.encode(text)

        def decode(self, tokens: list[int]) -> str:
            return "".join(chr(0x4E00 + token) for token in tokens)

    seconds: dict[str, list[float]] = {"limpid": [], "transformers": []}
    for number in range(rounds + 1):
        made = {}
        for name, side in (("limpid", limpid_side), ("transformers", transformers_side)):
            start = time.perf_counter()
            made[name] = side()
            if number:  # the first round pays for allocations
                seconds[name].append(time.perf_counter() - start)
        assert made["limpid"] == made["transformers"], "both sides must choose the same tokens"
    ratios = [theirs / ours for ours, theirs in zip(seconds["limpid"], seconds["transformers"], strict=True)]
    table = Table(title=f"{NEW_TOKENS} tokens, batch 1, default model, fp32, {torch.get_num_threads()} threads")
    for column in ("side", "tokens/s, median", "slowest … fastest"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for name, taken in seconds.items():
        table.add_row(
            name,
            f"{NEW_TOKENS / statistics.median(taken):,.0f}",
            f"{NEW_TOKENS / max(taken):,.0f} … {NEW_TOKENS / min(taken):,.0f}",
        )
    console = Console()
    console.print(table)
    console.print(f"ratio {statistics.median(ratios):.2f} (of {rounds} rounds: {min(ratios):.2f} … {max(ratios):.2f})")


if __name__ == "__main__":
    main()
