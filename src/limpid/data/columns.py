"""Records that lie in columns: parquet and arrow files, datasets of the Hugging Face hub."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

from limpid.data.records import Records, field_of
from limpid.errors import DataError
from limpid.files import one_line

HUB = "hf:"
HUB_FORM = "hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT"
AT_ONCE = 1024  # rows read together


def parquet_rows(path: Path, name: str, text_field: str | None) -> Records:
    """A record per row of a parquet file, with the one column that is asked for, or with all where none is."""
    pyarrow = _extra("pyarrow", f"{name}: parquet needs")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            columns = _wanted(file.schema_arrow.names, text_field, name)
            batches = file.iter_batches(batch_size=AT_ONCE, columns=columns)
            yield from enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {name} as parquet ({one_line(error)}): copy or download it again") from error


def arrow_rows(path: Path, name: str, text_field: str | None) -> Records:
    """The same of an arrow file, as `datasets.save_to_disk` writes them."""
    pyarrow = _extra("pyarrow", f"{name}: arrow needs")
    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            columns = _wanted(stream.schema.names, text_field, name)
            batches = (batch.select(columns).to_pylist() for batch in stream)
            yield from enumerate(itertools.chain.from_iterable(batches), 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {name} as arrow ({one_line(error)}): copy or download it again") from error


def hub_rows(name: str, text_field: str | None) -> Records:
    """The same of one split of a dataset, by default its training split."""
    dataset = _hub_dataset(name)
    wanted = dataset.select_columns(_wanted(dataset.column_names, text_field, name))
    yield from enumerate(itertools.chain.from_iterable(map(_rows, wanted.iter(batch_size=AT_ONCE))), 1)


@functools.cache
def _hub_dataset(name: str) -> Any:
    datasets = _extra("datasets", f"{name}: hub datasets need")
    repository, configuration, split = [*name.removeprefix(HUB).split(":", 2), "", ""][:3]  # a split may be train[:10%]
    if not repository:
        raise DataError(f"{name} names no dataset: expected {HUB_FORM}")
    try:
        return datasets.load_dataset(repository, configuration or None, split=split or "train")
    except Exception as error:  # whatever the network, the hub or the dataset's own files come up with
        raise DataError(
            f"cannot load {name} ({one_line(error):.200}): expected {HUB_FORM}, of which a split left out is train, "
            "and a network to fetch it"
        ) from error


def _wanted(columns: list[str], text_field: str | None, name: str) -> list[str]:
    return columns if text_field is None else [field_of(columns, text_field, name)]


def _rows(batch: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


def _extra(module: str, what: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise DataError(f"{what} an extra: pip install 'limpid[hub]'") from error
