"""All that limpid reads."""

from benchmarks.fuzz import mutate
from benchmarks.fuzz.targets import files, runs, typed
from benchmarks.fuzz.targets.target import Target


def either(one: mutate.Form, other: mutate.Form) -> mutate.Form:
    """The form of a document, or of a binary file."""
    return lambda data, rng: (one if data.lstrip()[:1] in (b"{", b"[") else other)(data, rng)


TARGETS = {
    "config": Target(either(mutate.json_form, mutate.toml_form), runs.config),
    "state": Target(mutate.json_form, runs.state),
    "manifest": Target(mutate.json_form, runs.manifest),
    "weights": Target(mutate.safetensors_form, runs.weights),
    "moments": Target(mutate.safetensors_form, runs.moments),
    "tokenizer": Target(mutate.json_form, files.tokenizer),
    "metrics": Target(mutate.json_lines, runs.metrics),
    "recorded": Target(mutate.safetensors_form, runs.recorded),
    "batch": Target(mutate.safetensors_form, runs.batch),
    "architecture": Target(mutate.json_form, files.architecture),
    "law": Target(either(mutate.json_lines, mutate.table_form), files.law),
    "compressed": Target(mutate.raw, files.compressed),
    "log": Target(either(mutate.json_lines, mutate.table_form), files.log),
    "events": Target(mutate.raw, files.events),
    "records": Target(mutate.json_lines, files.records),
    "text": Target(either(mutate.json_lines, mutate.table_form), files.text),
    "template": Target(mutate.json_form, files.template),
    "adapter": Target(either(mutate.json_form, mutate.safetensors_form), files.adapter),
    "folder": Target(either(mutate.json_form, mutate.safetensors_form), files.folder),
    "answer": Target(mutate.raw, typed.answer),
    "numbers": Target(mutate.raw, typed.numbers),
    "derivative": Target(mutate.raw, typed.derivative),
    "entry": Target(mutate.raw, typed.entry),
}
