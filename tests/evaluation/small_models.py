"""Small models with any tokenizer, ready to be evaluated."""

from limpid.config import ModelConfig
from limpid.data.tokenizer import Tokenizer, byte_tokenizer
from limpid.evaluation.inputs import EvaluatedModel
from limpid.model import Transformer, initialise

TEXT = "the cat sees the old dog, and naïve birds hear über-green rivers; 日本 🙂 small stones or not\n" * 6


def small_model(
    tokenizer: Tokenizer | None = None, seed: int = 0, context: int = 16, name: str = "tiny", **sizes
) -> EvaluatedModel:
    tokenizer = tokenizer or byte_tokenizer()
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=context, d_model=24, num_layers=2, num_heads=3, d_ff=40,
        init_std=0.3, **sizes,
    )  # fmt: skip
    return EvaluatedModel(name, initialise(Transformer(config), seed).eval(), tokenizer, tokenizer.end_of_text)
