"""Folders of 21 architectures through `limpid trace FOLDER --text`: python -m benchmarks.architecture_folders [NAME …].

Each is a tiny model with new weights, saved by transformers beside a tokenizer. A row says what it was fed, how much of
the arithmetic was checked, and the verdict; the list was drawn up before any of them was tried.
"""

import argparse
import contextlib
import io
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from limpid.cli import main as limpid

WORDS, WIDTH = 160, 32
TEXT = "the cat sat on the mat, and the dog saw it"
OWN = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1,
       "eos_token_id": 2}  # fmt: skip
SIZES = OWN | {"num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
KEYS = SIZES | {"num_key_value_heads": 1}
NARROW = KEYS | {"head_dim": 16}
TWO = {"vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
       "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
       "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}  # fmt: skip
VISION = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
          "image_size": 32, "patch_size": 8}  # fmt: skip
SOUND = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 8, 4), "conv_stride": (5, 8, 4), "num_feat_extract_layers": 3,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}  # fmt: skip
ALL: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3ForCausalLM": ("Gemma3TextConfig", NARROW),
    "GraniteForCausalLM": ("GraniteConfig", KEYS),
    "Phi3ForCausalLM": ("Phi3Config", KEYS),
    "Starcoder2ForCausalLM": ("Starcoder2Config", KEYS),
    "GptOssForCausalLM": ("GptOssConfig", NARROW | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "RecurrentGemmaForCausalLM": ("RecurrentGemmaConfig", NARROW | {"lru_width": WIDTH, "num_hidden_layers": 3}),
    "CTRLLMHeadModel": ("CTRLConfig", {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "dff": 48}),
    "CodeGenForCausalLM": ("CodeGenConfig", {"vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4,
                                             "rotary_dim": 8, "n_positions": 64}),
    "XLNetLMHeadModel": ("XLNetConfig", {"vocab_size": WORDS, "d_model": WIDTH, "n_layer": 2, "n_head": 2,
                                         "d_inner": 48}),
    "ModernBertForMaskedLM": ("ModernBertConfig", SIZES | {"cls_token_id": 1, "sep_token_id": 2}),
    "MPNetForMaskedLM": ("MPNetConfig", SIZES),
    "LongformerForMaskedLM": ("LongformerConfig", SIZES | {"attention_window": 4}),
    "PegasusForConditionalGeneration": ("PegasusConfig", TWO),
    "M2M100ForConditionalGeneration": ("M2M100Config", TWO),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig", {"vocab_size": WORDS, "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
    ),
    "RobertaForQuestionAnswering": ("RobertaConfig", SIZES),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "sr_ratios": [2, 1],
         "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
         "decoder_hidden_size": 16, "image_size": 32},
    ),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", SIZES | SOUND),
    "WhisperForConditionalGeneration": ("WhisperConfig", TWO | {"max_source_positions": 40, "max_target_positions": 64,
                                                                "num_mel_bins": 8, "decoder_start_token_id": 1}),
    "CLIPModel": ("CLIPConfig", {"text_config": SIZES, "vision_config": VISION, "projection_dim": 16}),
    "BertModel": ("BertConfig", SIZES),
}  # fmt: skip


def folder(name: str, place: Path) -> None:
    """A tiny model with new weights and a tokenizer of letters, as transformers saves them."""
    torch.manual_seed(0)
    config, sizes = ALL[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    model.save_pretrained(place)
    letters = {
        word: place for place, word in enumerate(["<pad>", "<s>", "</s>", "<mask>", "<unk>", *map(chr, range(32, 127))])
    }
    split = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="<pad>", bos_token="<s>", eos_token="</s>", mask_token="<mask>",
        unk_token="<unk>",
    ).save_pretrained(place)  # fmt: skip


def row(name: str) -> str:
    """What came of one."""
    with tempfile.TemporaryDirectory() as place:
        try:
            folder(name, Path(place))
        except Exception as error:
            return f"| {name} | transformers makes none: {str(error)[:90]} | | |"
        said, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            code = limpid(["trace", place, "--text", TEXT, "--json"])
    if code == 2:
        return f"| {name} | refused: {told.getvalue().strip().replace(place, 'FOLDER')[:200]} | | |"
    found = json.loads(said.getvalue())
    missing = ", ".join(f"{one['calls']} × {one['operation']}" for one in found["unchecked"])
    share = f"{100 * found['checked']:.2f}% in {found['checked_calls']} of {found['arithmetic_calls']} calls"
    return f"| {name} | {found['fed']} | {share}{f' (not {missing})' if missing else ''} | {found['verdict']} |"


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description="Folders of many architectures through limpid trace.")
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ALL))
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| architecture | fed | checked | verdict |\n|---|---|---|---|")
    for name in parser.parse_args().names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
