"""Time and memory of a recorded training step: python -m benchmarks.recorded_step [--tokens 128] [--threads 2].

GPT-2 of 124 million parameters, as transformers has it, with new weights: forward, loss, backward, AdamW, every call
done again. The same step without a recording is timed in the same process; the peak is that of the whole process.
"""

import argparse
import resource
import time
from contextlib import nullcontext

import torch
import transformers

import limpid


def taken(model: torch.nn.Module, tokens: torch.Tensor, record: bool) -> tuple[float, float, int]:
    """Seconds by the clock, of the processor, and calls beyond rounding or not checked."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    clock, processor = time.perf_counter(), time.process_time()
    with limpid.recording(model, optimizer) if record else nullcontext() as step:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    found = None if step is None else step.verify()
    amiss = 0 if found is None else len(found.wrong) + len(found.unchecked)
    return time.perf_counter() - clock, time.process_time() - processor, amiss


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description="Time and memory of a recorded step of GPT-2, 124 million parameters.")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    tokens = torch.randint(0, model.config.vocab_size, (1, given.tokens))
    for record in (False, True):
        clock, processor, amiss = taken(model, tokens, record)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{'recorded' if record else 'plain'}: {clock:.1f} s by the clock, {processor:.1f} s of processors, "
              f"{peak:.1f} GB at most, {amiss} calls beyond rounding or not checked", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
