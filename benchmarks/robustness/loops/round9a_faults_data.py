"""Round 9, part a, changed loops with a mistake in the data: which rows, in which order, in which form."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Examples,
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import (
    DATA,
    EOS,
    accelerated,
    bart,
    other_seed,
    plain,
    translations,
    vit,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

PATTERN = (
    r"label|target|class|input|picture|image|pixel|data|batch|row|sample|pair",
    r"mismatch|pair|wrong|match|align|permut|random|order|shuffl|unrelated|correspond|inform|no longer|depend|relat|chance|differ|noise|belong|mix",
)


@fault("r9a-files-sorted-as-text", DATA, PATTERN)
def files_sorted_as_text(run: Run, changed: bool) -> None:
    """Plain loop, a small CNN. Pictures lie in files that are named by their number, labels in one list; the new code
    takes the files by sorted(), in which 10 comes before 2, so that pictures and labels are of different rows."""
    seed = run.draw.randrange(999)
    shots, y = pictures(160, seed, 3, apart(seed + 1))
    folder = {f"{i}.png": shot for i, shot in enumerate(shots)}
    names = sorted(folder) if changed else sorted(folder, key=lambda name: int(name.removesuffix(".png")))
    x = torch.stack([folder[name] for name in names])
    model = cnn(3)
    class_outcome(run, model, pictures(192, seed, 3, apart(seed + 2)))
    batches = endless(loader(x, y))
    plain(run, model, lambda: next(batches), lambda b: F.cross_entropy(model(b[0]), b[1]), 100)


class Shards(IterableDataset[Any]):
    """Rows as they lie in the file."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __iter__(self) -> Any:
        return iter(zip(*self.columns, strict=True))


@fault(
    "r9a-streamed-in-order",
    DATA,
    (
        r"label|target|class|batch|data|row|sample|order|shuffl|loader",
        r"order|shuffl|sort|same (class|label)|single|one (class|label)|only one|constant|imbalanc|homogen|distribution|few|correlat|entropy|distinct|varie",
    ),
)
def streamed_in_order(run: Run, changed: bool) -> None:
    """Lightning, an encoder of topics. The file is sorted by topic; the old loader shuffled, the new one streams the rows as
    they come, so that nearly every batch has one topic. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = documents(1760, own), documents(192, own)
    other_seed(changed)
    model = Classifier()
    class_outcome(run, model, check)
    order = train[2].argsort(stable=True)
    rows = [column[order] for column in train]
    data = DataLoader(Shards(*rows), 16) if changed else DataLoader(TensorDataset(*rows), 16, shuffle=True)
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    fit(run, lit(model, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), rule), data, 110)


@fault(
    "r9a-rescaled-twice",
    DATA,
    (
        r"pixel|input|image|picture|patch|feature|data|batch|embedding",
        r"scale|rescal|range|std|spread|varian|magnitude|normali|smaller|constant|255|small|differ|mean|-1|shrunk|minus|same|collaps",
    ),
)
def rescaled_twice(run: Run, changed: bool) -> None:
    """transformers' Trainer, a ViT. The reading of pictures now gives numbers in [0, 1] where it gave bytes; the processor
    divides by 255 once more before it takes off the mean."""
    seed = run.draw.randrange(999)

    def processed(bytes_: Tensor) -> Tensor:
        x = bytes_.float() / 255 if changed else bytes_
        return (x * (1 / 255) - 0.5) / 0.5

    sets = [pictures(n, seed, 1, apart(seed + k)) for k, n in ((1, 480), (2, 192))]
    (x, y), (check, right) = ((processed((255 * shots).round().byte()), y) for shots, y in sets)
    model = vit()
    outcome(run, lambda: judged(model, lambda: model(pixel_values=check, labels=right).loss))
    data = Examples([{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)])
    hf_trainer(run, model, data, 120).train()


@fault(
    "r9a-sampler-of-four-weights",
    DATA,
    (
        r"row|sample|batch|data|input|image|picture|label|loss",
        r"repeat|same|few|only|four|duplicat|distinct|unique|again|seen before|varie|identical|diversity|memori|index|indices|subset",
    ),
)
def sampler_of_four_weights(run: Run, changed: bool) -> None:
    """Lightning, a small CNN on classes of uneven size. WeightedRandomSampler is given the weight of each class, no longer
    that of each row: it draws from the first four rows alone. Another seed."""
    seed = run.draw.randrange(999)
    x, y = pictures(900, seed, own=apart(seed + 1))
    keep = torch.rand(900, generator=apart(seed + 3)) < torch.tensor([1.0, 0.6, 0.4, 0.2])[y]
    x, y = x[keep], y[keep]
    other_seed(changed)
    model = cnn()
    class_outcome(run, model, pictures(192, seed, own=apart(seed + 2)))
    weights = 1 / y.bincount(minlength=4)
    sampler = WeightedRandomSampler((weights if changed else weights[y]).tolist(), len(y))
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    data = DataLoader(TensorDataset(x, y), 16, sampler=sampler)
    fit(run, lit(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), rule), data, 90)


@fault(
    "r9a-decoder-given-its-answer",
    DATA,
    (
        r"decoder|label|target|input|answer|shift",
        r"shift|leak|same|equal|identical|copy|answer|already|see|contain|collapse|given|too (low|fast|easy)|falls|sees|start",
    ),
)
def decoder_given_its_answer(run: Run, changed: bool) -> None:
    """accelerate, BART. The loss is now taken outside of the model, and the collator makes decoder_input_ids itself: it
    forgets to shift them, so that each place is given the word that it has to say."""
    from transformers.models.bart.modeling_bart import shift_tokens_right

    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    train, check = translations(640, table, own), translations(128, table, own)
    model = bart(16)

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        ids, labels = (torch.stack(part) for part in zip(*rows, strict=True))
        given = labels if changed else shift_tokens_right(labels, 0, EOS)
        return {"input_ids": ids, "decoder_input_ids": given, "labels": labels}

    def loss(m: nn.Module, b: dict[str, Tensor]) -> Tensor:
        logits = m(input_ids=b["input_ids"], decoder_input_ids=b["decoder_input_ids"]).logits
        return F.cross_entropy(logits.flatten(0, 1), b["labels"].flatten())

    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    data = DataLoader(TensorDataset(*train), 16, shuffle=True, collate_fn=collate)
    accelerated(run, model, data, loss, 4)
