"""Models of other families from their folders: the step is taken as transformers takes it, and what was fed is said."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from tests.tracing.test_trace import assert_fits
from tokenizers import Tokenizer, models, pre_tokenizers

from limpid.cli import main
from limpid.jsonable import to_json
from limpid.operations.document import DOCUMENTS, recording_from
from limpid.tracing.schema import json_schema

SIZES = {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
          "image_size": 16, "patch_size": 8}  # fmt: skip
KINDS = {
    "PhiForCausalLM": ("PhiConfig", SIZES, "11 tokens of the text, each a label"),
    "BertForMaskedLM": ("BertConfig", SIZES, "2 of them masked and asked for"),
    "BertForSequenceClassification": ("BertConfig", SIZES, "class 0 as its label"),
    "BertForQuestionAnswering": ("BertConfig", SIZES, "all of it as the answer"),
    "BertModel": ("BertConfig", SIZES, "half the mean square of its first output as the loss, as it forms none"),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 120, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
         "decoder_start_token_id": 0},
        "to be read and written again",
    ),
    "ViTForImageClassification": ("ViTConfig", VISION, "2 drawn pictures of 16 × 16, the first classes as"),
    "CLIPModel": ("CLIPConfig", {"text_config": SIZES, "vision_config": VISION, "projection_dim": 8},
                  "its own contrastive loss"),
}  # fmt: skip


def folder(place: Path, kind: str) -> Path:
    """A tiny model with new weights and a tokenizer of letters."""
    config, sizes, _ = KINDS[kind]
    torch.manual_seed(0)
    getattr(transformers, kind)(getattr(transformers, config)(**sizes)).save_pretrained(place)
    words = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", *map(chr, range(32, 127))]
    split = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="<pad>", mask_token="<mask>", unk_token="<unk>"
    ).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("models") / "bert", "BertForMaskedLM")


def typed(words: Sequence[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_any_family_is_one_command(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "model", kind)
    code, said, _ = typed(["trace", place, "--text", "the cat sat", "--json"], capsys)
    plain = json.loads(said)
    assert code == 0
    assert (plain["verdict"], plain["unchecked"], plain["checked"]) == ("holds", [], 1.0)
    assert KINDS[kind][2] in plain["fed"]
    assert plain["loss"] > 0
    assert {call["phase"] for call in plain["calls"]} == {"forward", "backward", "update"}
    definitions = json_schema(DOCUMENTS, "", 1)["$defs"]
    assert_fits(plain, definitions["RecordingDocument"], definitions)
    assert json.loads(json.dumps(to_json(recording_from(plain)))) == plain


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        ({}, ["--text", "x"], "the text has 1 tokens, expected 2 at least"),
        ({}, ["--text", "the cat", "--step", "3"], "--step has no use for"),
        ({}, ["--text", 80 * "the cat"], "its step cannot be taken on this"),
        ({}, [], "takes one and names its file"),
        ({}, ["--keep", "x"], "add --text"),
        ({"architectures": ["NoSuchModel"]}, ["--text", "the cat"], "has no NoSuchModel"),
        ({"architectures": None}, ["--text", "the cat"], "names no architectures"),
        (
            {"architectures": ["Theirs"], "auto_map": {"AutoModel": "theirs.Theirs"}},
            ["--text", "the cat"],
            "needs code of its own (auto_map in config.json), and limpid runs none",
        ),
        ({"hidden_size": 18}, ["--text", "the cat"], "transformers does not load it"),
    ],
)
def test_what_a_folder_lacks_is_one_line(
    bert: Path, tmp_path: Path, change: dict, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "bert"
    shutil.copytree(bert, place)
    said = json.loads((place / "config.json").read_text()) | change
    (place / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    code, _, err = typed(["trace", place, *words], capsys)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_no_code_of_a_folder_runs_and_no_pickle_is_read(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "bert"
    shutil.copytree(bert, place)
    (place / "theirs.py").write_text("raise SystemExit('it ran')")
    config = json.loads((place / "config.json").read_text())
    config["auto_map"] = {"AutoModelForMaskedLM": "theirs.Theirs", "AutoConfig": "theirs.Theirs"}
    (place / "config.json").write_text(json.dumps(config))
    code, _, err = typed(["trace", place, "--text", "the cat sat"], capsys)
    assert "it ran" not in err
    assert code == 0
    (place / "model.safetensors").unlink()
    torch.save({}, place / "pytorch_model.bin")
    code, _, err = typed(["trace", place, "--text", "the cat sat"], capsys)
    assert code == 2
    assert "is a pickle, which can run code" in err


def test_a_folder_of_an_own_family_is_redone_call_by_call_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(tmp_path / "llama")
    shutil.copy(folder(tmp_path / "bert", "BertForMaskedLM") / "tokenizer.json", tmp_path / "llama")
    shutil.copy(tmp_path / "bert" / "tokenizer_config.json", tmp_path / "llama")
    code, said, _ = typed(
        ["trace", tmp_path / "llama", "--text", "the cat sat", "--operations", "--precision", "bf16"], capsys
    )
    assert code == 0
    assert "each a label, bf16" in said
    assert "layers.0 … 1  2 alike" in said


def test_a_gradient_is_accounted_for_and_measured_before_the_update(
    bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    code, out, _ = typed(
        ["trace", bert, "--text", "the cat sat", "--precision", "bf16", "--error-of", f"grad({name})", "--json"], capsys
    )
    assert code == 0
    (found,) = recording_from(json.loads(out)).gradients
    assert found.exact is not None
    measured = found.engine - found.exact
    assert measured
    assert abs(measured - found.error - found.beyond) < 1e-6 * abs(measured)
