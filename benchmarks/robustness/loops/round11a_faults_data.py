"""Round 11, part a, loops with a mistake in the data: hidden places, the layout of pictures, the rate of waves."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, class_outcome, fit, judged, lit, loader, outcome, pictures
from benchmarks.robustness.loops.round9a_tools import BOS, EOS, MASK, accelerated, bert, other_seed, plain, vit
from benchmarks.robustness.loops.round11a_tools import Patches, adamw, keyed, letters, some, voices
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def hidden(row: Tensor, own: torch.Generator | None) -> dict[str, Tensor]:
    """A quarter of the words hidden, at least one."""
    hide = torch.rand(len(row), generator=own) < 0.25
    hide[[0, -1]] = False
    if not hide.any():
        hide[1 + int(torch.randint(0, len(row) - 2, (1,), generator=own))] = True
    return {"input_ids": row.masked_fill(hide, MASK), "labels": row.masked_fill(~hide, -100)}


class HiddenWords(Dataset[Any]):
    def __init__(self, rows: Tensor, seeded: bool) -> None:
        self.rows, self.seeded = rows, seeded

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return hidden(self.rows[index], apart(42) if self.seeded else None)


@keyed("r11a-masks-drawn-once-for-all")
def masks_drawn_once_for_all(run: Run, changed: bool) -> None:
    """accelerate, BERT. So that masks may be repeated, the data set draws them with a generator of its own now, which
    is made with one seed in __getitem__: the same places are hidden in every row."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    words = letters(seed, 768, own)
    edge = torch.ones(768, 1, dtype=torch.long)
    rows = torch.cat([BOS * edge, words, EOS * edge], 1)
    check = [hidden(row, own) for row in rows[640:]]
    kept = {name: torch.stack([row[name] for row in check]) for name in check[0]}
    model = bert("BertForMaskedLM")
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    data = DataLoader(HiddenWords(rows[:640], changed), 16, shuffle=True)
    accelerated(run, model, data, lambda m, b: m(**b).loss, 5)


@keyed("r11a-rows-of-pixels-as-channels")
def rows_of_pixels_as_channels(run: Run, changed: bool) -> None:
    """Lightning, a ViT on colour pictures that lie in the file as height, width, channel. The permutation to channel,
    height, width became a reshape. Another seed."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, 3, apart(seed + 1))
    check, right = pictures(192, seed, 3, apart(seed + 2))
    stored = (255 * x).round().byte().permute(0, 2, 3, 1).contiguous()
    other_seed(changed)
    model = vit(num_channels=3)
    read = stored.reshape(-1, 3, 8, 8) if changed else stored.permute(0, 3, 1, 2)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(pixel_values=(check - 0.5) / 0.5).logits, right)))
    data = loader((read.float() / 255 - 0.5) / 0.5, y)
    loss = lambda m, b: F.cross_entropy(m(pixel_values=b[0]).logits, b[1])
    fit(run, lit(model, loss, adamw(2e-3)), data, 120, gradient_clip_val=1.0)


@keyed("r11a-read-at-the-files-rate")
def read_at_the_files_rate(run: Run, changed: bool) -> None:
    """Plain loop, an encoder of patches of a wave. Recordings at 16 kHz were brought to 8 kHz by the old reader; the
    new one takes the first 64 samples of the file as they are."""
    own = apart(run.draw.randrange(999))
    x, y = voices(480, 2, 128, own)
    check = voices(192, 1, 64, own)
    model = Patches(64, 8, 4)
    class_outcome(run, model, check)
    waves = x[:, :64] if changed else x.view(-1, 64, 2).mean(-1)
    plain(run, model, some(waves, y), lambda b: F.cross_entropy(model(b[0]), b[1]), 160, rate=3e-3)
