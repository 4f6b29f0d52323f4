"""Small models with any tokenizer, ready to be evaluated."""

from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.data.tokenizer import Tokenizer
from limpid.loaded import LoadedModel
from limpid.model import Transformer, initialise

TEXT = "the cat sees the old dog, and naïve birds hear über-green rivers; 日本 🙂 small stones or not\n" * 6


def small_model(
    tokenizer: Tokenizer | None = None, seed: int = 0, context: int = 16, name: str = "tiny", **sizes
) -> LoadedModel:
    tokenizer = tokenizer or byte_tokenizer()
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=context, d_model=24, num_layers=2, num_heads=3, d_ff=40,
        init_std=0.3, **sizes,
    )  # fmt: skip
    return LoadedModel(name, initialise(Transformer(config), seed).eval(), tokenizer)
