"""Models by their names on the hub, laid out as its library keeps them, and adapters on them as peft saves them."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import limpid
from limpid.cli import main
from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.errors import CheckpointError, ConfigError
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.source import Adapted, ModelFolder, find_source, open_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def a_model(folder: Path, seed: int = 0) -> Path:
    config = ModelConfig(vocab_size=257, context_length=32, d_model=16, num_layers=1, num_heads=2, d_ff=24)
    weights = initialise(Transformer(config), seed).state_dict()
    save_folder(folder, config, weights, tokenizer_json=byte_tokenizer().to_json(), end_of_text=256)
    return folder


def an_adapter(folder: Path, base: str, model: Path) -> Path:
    """As peft saves it, beside what its model says with it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(
        LlamaForCausalLM.from_pretrained(model), LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.peft_config["default"].base_model_name_or_path = base
    adapted.save_pretrained(folder)
    with torch.no_grad():
        torch.save(adapted.eval()(torch.arange(20)[None]).logits, folder / "logits.pt")
    return folder


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a folder into the cache under a name: blobs, and links to them in the snapshot that refs/ names."""
    cache = tmp_path / "home" / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)

    def put(name: str, folder: Path, revision: str = "main", commit: str = COMMIT) -> Path:
        place = cache / f"models--{name.replace('/', '--')}"
        snapshot = place / "snapshots" / commit
        for made in (snapshot, place / "refs", place / "blobs"):
            made.mkdir(parents=True, exist_ok=True)
        (place / "refs" / revision).write_text(commit)
        for file in folder.iterdir():
            blob = place / "blobs" / f"{commit[:8]}-{file.name}"
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
        return snapshot

    return put


def logits(what: str | Path) -> torch.Tensor:
    model, _ = limpid.load(what)
    with torch.no_grad():
        return model(torch.arange(20)[None])


def test_a_name_is_found_in_the_cache_under_its_own_name(put: Callable[..., Path], tmp_path: Path) -> None:
    folder = a_model(tmp_path / "made")
    snapshot = put("somebody/tiny", folder)
    source = open_source("somebody/tiny")
    assert isinstance(source, ModelFolder)
    assert (source.path, source.name, str(source)) == (snapshot, "somebody/tiny", "somebody/tiny")
    assert torch.equal(logits("somebody/tiny"), logits(folder))
    assert repr(limpid.inspect("somebody/tiny", "the cat")).startswith("Inspection(somebody/tiny: 7 tokens")


def test_a_revision_is_a_branch_or_a_commit(put: Callable[..., Path], tmp_path: Path) -> None:
    put("somebody/tiny", a_model(tmp_path / "one"))
    other = put("somebody/tiny", a_model(tmp_path / "two", seed=1), "v2", "f" * 40)
    assert open_source("somebody/tiny@v2").path == open_source(f"somebody/tiny@{'f' * 40}").path == other
    assert open_source("somebody/tiny").path != other
    with pytest.raises(CheckpointError, match="the hub does not give it"):
        open_source("somebody/tiny@v3")


def test_a_folder_here_comes_before_the_cache(put: Callable[..., Path], tmp_path: Path) -> None:
    put("somebody/tiny", a_model(tmp_path / "made"))
    a_model(tmp_path / "somebody" / "tiny", seed=1)
    assert open_source("somebody/tiny") == ModelFolder(Path("somebody/tiny"))
    assert find_source(Path("somebody/other")) is None


def test_the_cache_is_where_its_library_s_environment_says(put: Callable[..., Path], tmp_path: Path) -> None:
    put("somebody/tiny", a_model(tmp_path / "made"))
    code = "from limpid.source import open_source; print(open_source('somebody/tiny').path); import sys; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code} assert 'torch' not in sys.modules"],
        env={"HF_HOME": str(tmp_path / "home"), "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip().endswith(COMMIT)


def test_what_the_cache_lacks_is_said(put: Callable[..., Path], tmp_path: Path) -> None:
    folder = a_model(tmp_path / "made")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    put("somebody/half", folder)
    with pytest.raises(CheckpointError, match=r"somebody/half has no whole model in safetensors|does not give it"):
        open_source("somebody/half")
    assert limpid.plan("somebody/half").figure("parameters.total").value > 0  # which needs config.json alone


@pytest.mark.parametrize(
    "words",
    [
        "generate somebody/tiny ab -n 3",
        "evaluate somebody/tiny --text 'the cat sees the dog'",
        "compare somebody/tiny somebody/tiny:fast",
        "compare somebody/tiny somebody/tiny:transformers",
        "trace somebody/tiny --text 'the cat'",
        "export somebody/tiny out",
        "plan somebody/tiny",
        "compress somebody/tiny made/config.json -o small.limpid",
    ],
)
def test_every_verb_takes_a_name(words: str, put: Callable[..., Path], tmp_path: Path, capsys) -> None:
    put("somebody/tiny", a_model(tmp_path / "made"))
    assert main(shlex.split(words)) == 0, capsys.readouterr().err
    assert not (tmp_path / "runs" / "somebody").exists()


def test_a_file_names_the_model_that_gives_it_back(put: Callable[..., Path], tmp_path: Path) -> None:
    put("somebody/tiny", a_model(tmp_path / "made"))
    (tmp_path / "t").write_bytes(b"the cat \xff")
    limpid.compress("somebody/tiny", "t")
    assert limpid.decompress("t.limpid", "u").model == "somebody/tiny"
    assert (tmp_path / "u").read_bytes() == b"the cat \xff"


@pytest.mark.parametrize("named", ["made", "../made", "somebody/tiny"])
def test_an_adapter_s_folder_is_the_model_that_peft_makes_of_it(
    named: str, put: Callable[..., Path], tmp_path: Path
) -> None:
    folder = a_model(tmp_path / "made")
    put("somebody/tiny", folder)
    adapter = an_adapter(tmp_path / "adapter", named, folder)
    assert isinstance(open_source(adapter), Adapted)
    assert torch.allclose(logits(adapter), torch.load(adapter / "logits.pt"), atol=1e-5)
    assert not torch.allclose(logits(adapter), logits(folder), atol=1e-2)
    assert limpid.generate(adapter, "a", max_new_tokens=3)[0].prompt == "a"


def test_a_model_and_an_adapter_are_joined_by_a_plus(put: Callable[..., Path], tmp_path: Path) -> None:
    folder = a_model(tmp_path / "made")
    adapter = an_adapter(tmp_path / "adapter", "moved/away", folder)
    put("somebody/adapter", adapter)
    expected = torch.load(adapter / "logits.pt")
    for name in ("made+adapter", f"{folder}+{adapter}", "made+somebody/adapter"):
        assert torch.allclose(logits(name), expected, atol=1e-5)
    with pytest.raises(CheckpointError, match=r"moved/away.*no run or folder here"):
        open_source("adapter")
    limpid.export("made+adapter", "whole")
    whole = LlamaForCausalLM.from_pretrained("whole")
    assert torch.allclose(whole(torch.arange(20)[None]).logits, expected, atol=1e-5)
    assert limpid.compare("made+adapter", "whole").agrees
    assert main(["plan", "made+adapter"]) == 0
    assert main(["trace", "made+adapter"]) == 2


def test_an_adapter_that_is_more_than_low_rank_is_refused(put: Callable[..., Path], tmp_path: Path) -> None:
    folder = a_model(tmp_path / "made")
    adapter = an_adapter(tmp_path / "adapter", "made", folder)
    from safetensors.torch import load_file

    tensors = load_file(adapter / "adapter_model.safetensors")
    tensors["base_model.model.lm_head.weight"] = torch.zeros(257, 16)
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"lm_head.weight, more than low-rank factors"):
        limpid.load(adapter)


def test_an_adapter_brings_its_own_tokenizer_and_template(put: Callable[..., Path], tmp_path: Path) -> None:
    folder = a_model(tmp_path / "made")
    adapter = an_adapter(tmp_path / "adapter", "made", folder)
    shutil.copy(folder / "tokenizer.json", adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    _, tokenizer = limpid.load(adapter)
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}]) == [97, 98, 33]
    assert tokenizer.ends == {256}
    assert LlamaConfig.from_pretrained(folder).vocab_size == tokenizer.vocab_size
