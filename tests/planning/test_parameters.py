"""What a configuration costs: the numbers that papers state."""

import pytest

from limpid.config import ModelConfig
from limpid.planning import parameter_count

PLAIN = {
    "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh", "attention_bias": True,
    "attention_output_bias": True, "mlp_bias": True, "tied": True,
}  # fmt: skip


def test_gpt_3_is_174_billion_parameters_beside_its_embeddings() -> None:
    config = ModelConfig(
        vocab_size=50257, context_length=2048, d_model=12288, num_layers=96, num_heads=96, d_ff=4 * 12288, **PLAIN
    )
    embeddings = (50257 + 2048) * 12288
    assert parameter_count(config) - embeddings == pytest.approx(174e9, rel=2e-3)
    assert parameter_count(config) - embeddings == pytest.approx(12 * 96 * 12288**2, rel=2e-3)


@pytest.mark.parametrize(
    ("changes", "per_block"),
    [
        ({"mlp": "plain", "d_ff": 4 * 48, "norm": "layer"}, 12 * 48**2 + 4 * 48),
        ({"mlp": "gated", "d_ff": 4 * 48, "norm": "rms"}, 16 * 48**2 + 2 * 48),
        ({"mlp": "gated", "d_ff": 8 * 16, "norm": "rms"}, 12 * 48**2 + 2 * 48),
        ({"mlp": "plain", "d_ff": 4 * 48, "norm": "rms", "num_kv_heads": 2}, (12 - 2 * 5 / 6) * 48**2 + 2 * 48),
    ],
)
def test_a_block_counts_its_attention_its_mlp_and_its_norms(changes: dict, per_block: float) -> None:
    sizes = [
        parameter_count(
            ModelConfig(**({"vocab_size": 10, "d_model": 48, "num_heads": 12, "num_layers": layers} | changes))
        )
        for layers in (1, 2)
    ]
    assert sizes[1] - sizes[0] == per_block


def test_tying_saves_a_table() -> None:
    tied, apart = (
        parameter_count(ModelConfig(vocab_size=1000, d_model=64, num_heads=4, tied=t)) for t in (True, False)
    )
    assert apart - tied == 1000 * 64
