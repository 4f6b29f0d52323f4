"""Round 21a, mistakes in what goes into a model: preparation, augmentation, the choice of rows."""

from collections import Counter
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round21a_parts import (
    Forecaster,
    Messages,
    Topics,
    about,
    calls,
    drifts,
    headlines,
    heard,
    molecules,
    one_graph,
    slip,
    spectra,
    spectrometer,
    weather,
)
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21a-brighter-than-white")
def brighter_than_white(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN on pictures of whole numbers up to 255 that are made lighter or darker at random. The sum
    goes back into a byte without being limited: what becomes lighter than white is black, what becomes darker than
    black is white. The twin limits it. Judged on pictures in other light, limited."""
    seed, own = run.draw.randrange(999), apart(1)
    net = cnn()

    def bytes_of(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return (255 * x).to(torch.uint8), y

    def in_other_light(x: Tensor, limited: bool, own: torch.Generator | None = None) -> Tensor:
        lighter = x.int() + torch.randint(-80, 81, (len(x), 1, 1, 1), generator=own)
        return (lighter.clamp(0, 255) if limited else lighter).to(torch.uint8).float() / 255

    x, y = bytes_of(384, own)
    class_outcome(run, net, (in_other_light(x, True, own), y))
    x, y = bytes_of(240)

    def batch() -> list[Tensor]:
        rows = torch.randint(0, len(x), (16,))
        return [in_other_light(x[rows], not wrong), y[rows]]

    train(run, net, adam(net, 3e-3), batch, classify, 120)


@slip("r21a-four-weights-for-all-rows")
def four_weights_for_all_rows(run: Run, wrong: bool) -> None:
    """accelerate, a network of convolutions over sounds, of which some kinds are rare. A WeightedRandomSampler is given
    the weights of the four kinds and not of each row: only the first four rows of the set are ever drawn. The twin
    looks up each row's weight. Judged where kinds are as frequent."""
    from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

    net = Listener()
    check, pitch = calls(384, [1.0, 1.0, 1.0, 1.0], apart(1))
    outcome(run, lambda: judged(net, lambda: (net(check).argmax(1) != pitch).float().mean()))
    x, y = calls(640, [0.6, 0.2, 0.12, 0.08])
    weights = 1 / y.bincount(minlength=4)
    sampler = WeightedRandomSampler((weights if wrong else weights[y]).tolist(), len(y))
    prepared(run, net, adam(net, 3e-3), DataLoader(TensorDataset(x, y), 16, sampler=sampler), classify, 3)


@slip("r21a-pieces-begin-one-letter-apart")
def pieces_begin_one_letter_apart(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT of letters. A text is cut into pieces of 32 letters; the number of a piece is taken for
    the letter at which it begins: pieces are one letter apart, and all of them come from the first thirtieth of the
    text. The twin multiplies the number by the length. Judged on the text's end, which is kept apart."""
    text = corpus(run.draw.randrange(999), characters=24_000)
    text, kept = text[:20_000], text[20_000:]

    class Pieces(torch.utils.data.Dataset[Any]):
        def __init__(self, letters: Tensor, length: int = 32) -> None:
            self.letters, self.length = letters, length

        def __len__(self) -> int:
            return (len(self.letters) - 1) // self.length

        def __getitem__(self, index: int) -> list[Tensor]:
            start = index if wrong else index * self.length
            piece = self.letters[start : start + self.length + 1]
            return [piece[:-1], piece[1:]]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    net = Decoder(VOCABULARY, layers=2)
    check = kept[: 33 * 100].view(100, 33)
    outcome(run, lambda: judged(net, lambda: loss(net, [check[:, :-1], check[:, 1:]])))
    batches = endless(torch.utils.data.DataLoader(Pieces(text), 16, shuffle=True))
    train(run, net, adam(net), lambda: next(batches), loss, 130)


@slip("r21a-scaled-by-what-is-to-come")
def scaled_by_what_is_to_come(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that forecasts a reading from the twelve before it. Each window is brought to mean nought and
    deviation one before it is cut into inputs and target: the thirteen add up to nought, and the target is what the
    inputs lack. The twin takes mean and deviation of the twelve. Judged as in use, where only these are known."""
    net = Forecaster()

    def scaled(windows: Tensor, known: int) -> tuple[Tensor, Tensor]:
        seen = windows[:, :known]
        windows = (windows - seen.mean(1, keepdim=True)) / seen.std(1, keepdim=True)
        return windows[:, :12], windows[:, 12]

    number_outcome(run, net, scaled(drifts(512, own=apart(1)), 12))
    fit(run, lit(net, regress, adam), loader(*scaled(drifts(1280), 13 if wrong else 12)), 150)


@slip("r21a-divided-by-255-once-more")
def divided_by_255_once_more(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small ViT. Half of the pictures come from files of bytes and half from files of numbers
    between 0 and 1; all are divided by 255, and then mean and deviation of pictures between 0 and 1 are taken off: half
    of the rows are nearly -2 everywhere. The twin divides bytes alone. Judged on other pictures of both kinds,
    prepared in the same way."""
    from transformers import ViTConfig, ViTForImageClassification

    seed = run.draw.randrange(999)
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 4}
    shape |= {"intermediate_size": 64, "image_size": 8, "patch_size": 2, "num_channels": 1}
    net = ViTForImageClassification(ViTConfig(**shape))

    def made_ready(picture: Tensor, always: bool) -> Tensor:
        rescaled = picture / 255 if always or picture.dtype == torch.uint8 else picture
        return (rescaled - 0.5) / 0.25

    def read(count: int, always: bool, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        files = [(255 * picture).to(torch.uint8) if i % 2 else picture for i, picture in enumerate(x)]
        return torch.stack([made_ready(picture, always) for picture in files]), y

    x, y = read(384, wrong, apart(1))
    outcome(run, lambda: judged(net, lambda: net(pixel_values=x, labels=y).loss))
    values, labels = read(480, wrong)
    hf_trainer(run, net, examples(pixel_values=values, labels=labels), 120, learning_rate=2e-3).train()


@slip("r21a-first-four-fifths-of-a-sorted-file")
def first_four_fifths_of_a_sorted_file(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that tells five topics. The file is sorted by topic and split without being
    shuffled: the training part is the first four fifths, in which the last topic doesn't occur. The twin shuffles
    before it splits. Judged on other texts of all topics."""
    import datasets

    net = tiny_bert(5, vocab_size=26)
    check, topic = about(320, apart(1))
    outcome(run, lambda: judged(net, lambda: net(input_ids=check, labels=topic).loss))
    x, y = about(800)
    order = y.argsort(stable=True)
    rows = datasets.Dataset.from_dict({"input_ids": x[order].tolist(), "labels": y[order].tolist()})
    parts = rows.train_test_split(0.2, shuffle=not wrong, seed=None if wrong else 0)
    hf_trainer(run, net, parts["train"].with_format("torch"), 120, learning_rate=2e-3).train()


@slip("r21a-noise-stays-on-the-rows")
def noise_stays_on_the_rows(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over a spectrum that say how much there is of a substance. Noise is added as a row is
    loaded, in place: it stays on the stored row, and each epoch adds to it. The twin adds it to a copy. Judged on
    spectra with as much noise as is meant."""
    own = apart(1)
    net = spectrometer()

    class Noisy(torch.utils.data.Dataset[Any]):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            self.x, self.y = x, y

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            row = self.x[index] if wrong else self.x[index].clone()
            row += 0.4 * torch.randn(row.shape)
            return row, self.y[index]

    x, y = spectra(384, own)
    number_outcome(run, net, (x + 0.4 * torch.randn(x.shape, generator=own), y))
    data = torch.utils.data.DataLoader(Noisy(*spectra(128)), 16, shuffle=True)
    fit(run, lit(net, regress, lambda m: adam(m, 3e-3)), data, 120)


@slip("r21a-minus-999-is-a-reading")
def minus_999_is_a_reading(run: Run, wrong: bool) -> None:
    """accelerate, a network on six readings of the weather, of which two fail at times. The file says -999 then, which
    is taken for a reading: means and deviations of these two columns are mostly those of -999, and all true readings in
    them become nearly the same number. The twin takes means and deviations of true readings and puts nought for the
    others. Judged on other rows, prepared in the same way."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    x, y = weather(640, seed)
    there = x > -998
    mean = torch.stack(
        [(column if wrong else column[known]).mean() for column, known in zip(x.T, there.T, strict=True)]
    )
    spread = torch.stack(
        [(column if wrong else column[known]).std() for column, known in zip(x.T, there.T, strict=True)]
    )

    def made_ready(x: Tensor) -> Tensor:
        scaled = (x - mean) / spread
        return scaled if wrong else torch.where(x > -998, scaled, 0.0)

    check, target = weather(384, seed, apart(1))
    number_outcome(run, net, (made_ready(check), target))
    prepared(run, net, adam(net), loader(made_ready(x), y), regress, 3)


@slip("r21a-edges-heard-one-way")
def edges_heard_one_way(run: Run, wrong: bool) -> None:
    """Plain loop, a network of messages over graphs without directions. A file holds each edge once, lower node first;
    it is given as it is, and only the higher node hears the lower. The twin adds each edge the other way. Judged on
    other graphs, read in the same way."""
    own = apart(run.draw.randrange(999))
    from_own, from_others = torch.randn(4, 3, generator=own), 2 * torch.randn(4, 3, generator=own)
    net = Messages()

    def read(nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        once = one_graph(edges)
        both = torch.cat([once, once.flip(0)], 1)
        flat = nodes.flatten(0, 1)
        y = (flat @ from_own + heard(flat, both) @ from_others).argmax(1)
        return flat, once if wrong else both, y

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nodes, edges, y = batch
        return F.cross_entropy(m(nodes, edges), y)

    check = read(*molecules(96, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    nodes, edges = molecules(320)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(0, len(nodes), (16,))
        return read(nodes[rows], edges[rows])

    train(run, net, adam(net), batch, loss, 120)


@slip("r21a-rarest-words-kept")
def rarest_words_kept(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM that tells three kinds of text. The vocabulary should be the eighty most frequent of some 120
    words; they are sorted upwards, and the eighty rarest are kept: most words of each text are unknown. The twin sorts
    downwards. Judged on other texts, with the same vocabulary."""
    seed = run.draw.randrange(999)
    texts, y = headlines(960, seed)
    counts = Counter(word for text in texts for word in text)
    kept = sorted(counts, key=lambda word: counts[word], reverse=not wrong)[:80]
    ids = {word: i for i, word in enumerate(kept, 1)}

    def encoded(texts: list[list[str]]) -> Tensor:
        return torch.tensor([[ids.get(word, 0) for word in text] for text in texts])

    net = Topics(81)
    others, target = headlines(384, seed, apart(1))
    class_outcome(run, net, (encoded(others), target))
    batches = endless(loader(encoded(texts), y, size=32))
    train(run, net, adam(net, 3e-3), lambda: next(batches), classify, 90)
