"""Small models of other people's, with a loss each."""

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH = 40, 16
TOKENS = torch.randint(3, WORDS - 1, (2, 10), generator=torch.Generator().manual_seed(1))
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
SIZES = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GPT = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16}
LANGUAGE = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", SIZES | {"num_key_value_heads": 1}),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", SIZES | {"num_key_value_heads": 1, "num_local_experts": 4}),
    "BERT": ("BertConfig", "BertForMaskedLM", SIZES),
    "Mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2}),
    "T5": ("T5Config", "T5ForConditionalGeneration",
           {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
            "decoder_start_token_id": 0}),
}  # fmt: skip


class Net(nn.Module):
    """Convolutions both ways, norms over groups and a batch, pooling, stretching."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.group = nn.Conv2d(3, 8, 3, padding=1, groups=1), nn.GroupNorm(2, 8)
        self.down, self.batch = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        wide = functional.silu(self.group(self.first(pictures)))
        up = self.up(functional.relu(self.batch(self.down(wide))))
        up = up + functional.interpolate(functional.max_pool2d(wide, 2), scale_factor=2)
        up = up + functional.interpolate(functional.avg_pool2d(wide, 2), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([wide, up], 1))


class Recurrent(nn.Module):
    """A gated recurrent unit over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.unit = nn.Embedding(WORDS, 8), nn.GRU(8, 12, batch_first=True)
        self.head = nn.Linear(12, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.unit(self.embedding(tokens))[0])


Step = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def step_of(name: str) -> Step:
    """A model with new weights, and its loss."""
    torch.manual_seed(0)
    if name in LANGUAGE:
        config, model, sizes = LANGUAGE[name]
        made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        return made, lambda model: model(input_ids=TOKENS, labels=TOKENS).loss
    if name == "convolutions":
        return Net(), lambda model: functional.mse_loss(model(PICTURES), PICTURES)
    return Recurrent(), lambda model: functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())


MODELS = [*LANGUAGE, "convolutions", "recurrent"]
