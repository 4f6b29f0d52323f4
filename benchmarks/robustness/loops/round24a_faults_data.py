"""Round 24a, mistakes in what goes into the model: channels, order, spelling, caches, cuts, times, places."""

from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import llama, text_class_outcome, texts
from benchmarks.robustness.loops.round24a_parts import (
    Beats,
    Birds,
    Gazette,
    Hearing,
    Stations,
    letters,
    logs,
    recordings,
    reports,
    singing,
    slip,
    terrain,
    warmth,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24a-first-half-for-the-left-ear")
def first_half_for_the_left_ear(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that say from two channels where a source is. A file keeps left and right frame by frame;
    its numbers are put into two rows, the first half and the second half of them, each of which has both channels in
    turn. The twin puts them into two columns and turns these. Judged on other files, read in the same way."""
    net = Hearing()

    def read(files: list[bytes]) -> Tensor:
        rows = []
        for file in files:
            numbers = np.frombuffer(file, np.int16).astype(np.float32) / 8000
            rows.append(torch.from_numpy(numbers.reshape(2, -1) if wrong else numbers.reshape(-1, 2).T.copy()))
        return torch.stack(rows)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    files, place = recordings(384, apart(1))
    number_outcome(run, net, (read(files), place))
    files, place = recordings(800)
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(read(files), place), 140)


@slip("r24a-a-small-buffer-over-a-sorted-file")
def a_small_buffer_over_a_sorted_file(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT and a stream of texts. They are kept topic after topic and shuffled as they
    come, in a buffer of 64 rows of 1,600: each batch is nearly of one topic, and the last topic is all that is taught
    at the end. The twin's buffer holds all rows. Judged on other texts, topics alike in number."""
    import datasets

    net = tiny_bert()
    text_class_outcome(run, net, texts(384, apart(1)))
    x, mask, y = documents(1600)
    order = y.argsort()
    columns = {"input_ids": x[order], "attention_mask": mask[order].long(), "labels": y[order]}

    def rows() -> Any:
        for i in range(len(x)):
            yield {name: column[i] for name, column in columns.items()}

    stream = datasets.IterableDataset.from_generator(rows)
    data = stream.shuffle(seed=run.draw.randrange(9999), buffer_size=64 if wrong else len(x))
    hf_trainer(run, net, data, 100, learning_rate=2e-3).train()


@slip("r24a-capitals-are-unknown")
def capitals_are_unknown(run: Run, wrong: bool) -> None:
    """accelerate, an LSTM that says which paper a text is from. The list of words is made of words in small letters,
    and the words of texts are looked up as they are written: names and first words are all the unknown word. The twin
    looks them up in small letters. Judged on other texts, looked up in the same way."""
    seed = run.draw.randrange(999)
    said, y = reports(640, seed)
    known = {word: 2 + i for i, word in enumerate(sorted({word.lower() for text in said for word in text}))}

    def ids(said: list[list[str]]) -> Tensor:
        return torch.tensor([[known.get(word if wrong else word.lower(), 1) for word in text] for text in said])

    net = Gazette(2 + len(known))
    others, theirs = reports(384, seed, apart(1))
    class_outcome(run, net, (ids(others), theirs))
    prepared(run, net, adam(net, 5e-3), loader(ids(said), y), classify, 3)


@slip("r24a-one-name-in-every-folder")
def one_name_in_every_folder(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN on pictures in a folder for each class. Pictures are kept once they are read, by the name
    of their file, and the same names occur in several folders: the picture that is read first comes for the others,
    too, with their labels. The twin keeps them by the whole path. Judged on other pictures."""
    seed = run.draw.randrange(999)
    net = cnn()
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    x, y = pictures(480, seed)
    numbers = [torch.randperm(300).tolist() for _ in range(4)]
    disk: dict[PurePosixPath, Tensor] = {}
    for picture, label in zip((255 * x).round().byte(), y.tolist(), strict=True):
        disk[PurePosixPath("pictures", f"{label}", f"{numbers[label].pop():04}.png")] = picture
    paths = list(disk)
    cache: dict[PurePosixPath | str, Tensor] = {}

    def read(path: PurePosixPath) -> Tensor:
        key = path.name if wrong else path
        if key not in cache:
            cache[key] = disk[path].float() / 255
        return cache[key]

    def batch() -> tuple[Tensor, Tensor]:
        drawn = [paths[i] for i in torch.randint(0, len(paths), (16,)).tolist()]
        return torch.stack([read(path) for path in drawn]), torch.tensor([int(path.parent.name) for path in drawn])

    train(run, net, adam(net, 3e-3), batch, classify, 130)


@slip("r24a-the-question-cut-off")
def the_question_cut_off(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small Llama that answers questions about letters. A letter with its question behind it
    is cut to 16 words, and what is cut is the end: half of the rows teach answers to questions that are not there. The
    twin cuts the letter and keeps the question. Judged by answers about other letters, cut in the same way."""
    seed = run.draw.randrange(999)
    net = llama(26, pad_token_id=0)
    answers = torch.randint(14, 26, (4, 6, 2), generator=apart(seed))

    def rows(asked: list[tuple[list[int], int]]) -> dict[str, Tensor]:
        """Letter, a mark 3, what is asked, a mark 1, two words of answer, an end 2, and padding 0; answer and end are
        taught."""
        ids, taught = torch.zeros(len(asked), 20, dtype=torch.long), torch.full((len(asked), 20), -100)
        for row, (letter, question) in enumerate(asked):
            prompt = [*letter, 3, question][:16] if wrong else [*letter[:14], 3, question]
            prompt = [*prompt, 1]
            answer = [*answers[letter[0] - 4, question - 8].tolist(), 2]
            ids[row, : len(prompt) + 3] = torch.tensor(prompt + answer)
            taught[row, len(prompt) : len(prompt) + 3] = torch.tensor(answer)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": taught}

    check = rows(letters(384, apart(1)))
    outcome(run, lambda: judged(net, lambda: net(**check).loss))
    hf_trainer(run, net, examples(**rows(letters(960))), 130).train()


@slip("r24a-seconds-since-1970-in-single")
def seconds_since_1970_in_single(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that says from the times of events how regular they are. Times are seconds since 1970 and become
    single numbers, which lie 128 seconds apart there, before the gaps are computed: gaps are 0, 128 or 256 seconds. The
    twin computes gaps in double precision. Judged on other logs, read in the same way."""
    net = Beats()

    def gaps(times: np.ndarray[Any, Any]) -> Tensor:
        seconds = torch.tensor(times, dtype=torch.float32 if wrong else torch.float64)
        return seconds.diff(dim=1).float().log1p()

    times, kind = logs(384, apart(1))
    class_outcome(run, net, (gaps(times), kind))
    times, kind = logs(800)
    fit(run, lit(net, classify, lambda m: adam(m, 1e-2)), loader(gaps(times), kind), 150)


@slip("r24a-round-the-end-to-the-front")
def round_the_end_to_the_front(run: Run, wrong: bool) -> None:
    """accelerate, convolutions that say which of three birds sings first in a recording of two. Recordings are moved in
    time by a roll, by up to half their length: what is pushed out at the end comes back in front, and the second bird
    is now the first. The twin moves no further than the silence at both ends. Judged on other recordings, not moved."""
    seed = run.draw.randrange(999)
    net = Birds()
    far = 48 if wrong else 24

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        moves = torch.randint(-far, far, (len(rows),)).tolist()
        x = torch.stack([row.roll(by, -1) for (row, _), by in zip(rows, moves, strict=True)])
        return [x, torch.stack([y for _, y in rows])]

    class_outcome(run, net, singing(384, seed, apart(1)))
    prepared(run, net, adam(net, 5e-3), loader(*singing(1200, seed), collate_fn=collated), classify, 2)


@slip("r24a-across-for-down")
def across_for_down(run: Run, wrong: bool) -> None:
    """Plain loop, a network that says how warm it is at a station from the map around it and from three readings. The
    map is rows from north to south and stations are kept as east and north-south; the piece of the map is cut out with
    the first as the row: it shows the place on the other side of the diagonal. The twin takes the second as the row.
    Judged on other stations, whose pieces are cut in the same way."""
    seed = run.draw.randrange(999)
    heights = terrain(seed)
    net = Stations()

    def pieces(places: Tensor) -> Tensor:
        out = []
        for x, y in places.tolist():
            row, column = (x, y) if wrong else (y, x)
            out.append(heights[row - 3 : row + 4, column - 3 : column + 4])
        return torch.stack(out)[:, None]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    others, theirs, measured = warmth(384, heights, apart(1))
    check = pieces(others)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(check, theirs), measured) / measured.var()))
    places, readings, warm = warmth(800, heights)
    batches = endless(loader(pieces(places), readings, warm))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 140)
