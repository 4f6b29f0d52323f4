"""A Hugging Face folder of a tiny model that was given a chat template."""

from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerFast

from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_folder(folder: Path, template: str | None = CHATML, context: int = 128, seed: int = 0) -> Path:
    """Bytes, three special tokens, and generation_config.json with two ends."""
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.add_special_tokens(SPECIAL)
    config = ModelConfig(
        vocab_size=260, context_length=context, d_model=24, num_layers=2, num_heads=4, d_ff=40, init_std=0.35
    )
    model = initialise(Transformer(config), seed)
    save_folder(folder, config, model.state_dict(), tokenizer_json=None, end_of_text=256)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="<|im_end|>", chat_template=template
    )
    theirs.save_pretrained(folder)
    GenerationConfig(eos_token_id=[258, 256], bos_token_id=259).save_pretrained(folder)
    return folder
