"""Records that lie in columns: parquet and arrow files, datasets of the Hugging Face hub."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from limpid.data.records import Records, field_of
from limpid.errors import DataError
from limpid.files import one_line

HUB = "hf:"
HUB_FORM = "hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT"
AT_ONCE = 1024  # rows read together


def parquet_rows(path: Path, name: str, text_field: str) -> Records:
    """A record per row of a parquet file, with the one column that is asked for."""
    pyarrow = _extra("pyarrow", f"{name}: parquet needs")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            column = field_of(file.schema_arrow.names, text_field, name)
            batches = file.iter_batches(batch_size=AT_ONCE, columns=[column])
            yield from _numbered((batch.column(0).to_pylist() for batch in batches), column)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {name} as parquet ({one_line(error)}): copy or download it again") from error


def arrow_rows(path: Path, name: str, text_field: str) -> Records:
    """The same of an arrow file, as `datasets.save_to_disk` writes them."""
    pyarrow = _extra("pyarrow", f"{name}: arrow needs")
    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            column = field_of(stream.schema.names, text_field, name)
            yield from _numbered((batch.column(column).to_pylist() for batch in stream), column)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {name} as arrow ({one_line(error)}): copy or download it again") from error


def hub_rows(name: str, text_field: str) -> Records:
    """The same of one split of a dataset, by default its training split."""
    dataset = _hub_dataset(name)
    column = field_of(dataset.column_names, text_field, name)
    batches = dataset.select_columns([column]).iter(batch_size=AT_ONCE)
    yield from _numbered((batch[column] for batch in batches), column)


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


def _numbered(columns: Any, column: str) -> Records:
    number = 0
    for values in columns:
        for value in values:
            number += 1
            yield number, {column: value}


def _extra(module: str, what: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise DataError(f"{what} an extra: pip install 'limpid[hub]'") from error
