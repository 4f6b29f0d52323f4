"""A step of every architecture, all operations done again: python -m benchmarks.architectures [NAME …] [--format bf16].

Tiny models of transformers and hand-written ones: forward, loss, backward, clipping, AdamW. A row says how much of the
arithmetic was checked and how many verdicts were wrong ones, since PyTorch is taken to be right here.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import limpid

WORDS, WIDTH = 64, 32
TOKENS = torch.randint(3, WORDS - 1, (2, 12), generator=torch.Generator().manual_seed(1))
PICTURES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1])
OWN = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2}
SIZES = OWN | {
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KEYS = SIZES | {"num_key_value_heads": 1}
NARROW = KEYS | {"head_dim": 16}
GPT = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 2}
TWO = {
    "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8,
    "first_k_dense_replace": 1, "moe_intermediate_size": 16,
}  # fmt: skip
CAUSAL: dict[str, dict[str, Any]] = {
    "Llama": KEYS, "Mistral": KEYS, "Qwen2": KEYS, "Qwen3": NARROW, "Gemma": NARROW, "Gemma2": NARROW, "Phi": SIZES,
    "StableLm": KEYS, "GPTNeoX": SIZES, "Olmo2": KEYS, "Cohere": KEYS, "Mixtral": KEYS | {"num_local_experts": 4},
    "Qwen2Moe": KEYS | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "Olmoe": KEYS | {"num_experts": 8}, "DeepseekV3": SIZES | LATENT, "GPTJ": GPT | {"rotary_dim": 8},
    "OPT": OWN | {"num_attention_heads": 2, "ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "Bloom": {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 2},
    "Falcon": OWN | {"num_attention_heads": 2}, "Mamba": OWN | {"state_size": 4},
    "Mamba2": OWN | {"state_size": 4, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
}  # fmt: skip
MASKED: dict[str, dict[str, Any]] = {
    "Bert": SIZES, "Roberta": SIZES, "DebertaV2": SIZES,
    "Electra": SIZES | {"embedding_size": 16}, "Albert": SIZES | {"embedding_size": 16},
    "DistilBert": {"vocab_size": WORDS, "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 48},
}  # fmt: skip
PAIRED: dict[str, dict[str, Any]] = {
    "T5": {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
           "decoder_start_token_id": 0},
    "Bart": TWO | {"vocab_size": WORDS},
}  # fmt: skip
SEEING: dict[str, dict[str, Any]] = {
    "ViT": {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
            "image_size": 32, "patch_size": 8},
    "ConvNext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2],
             "window_size": 4},
}  # fmt: skip


class Recurrent(nn.Module):
    """A long short-term memory, or a gated recurrent unit, over tokens."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding, self.unit = nn.Embedding(WORDS, 16), kind(16, 24, 2, batch_first=True)
        self.head = nn.Linear(24, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.unit(self.embedding(tokens))[0])


class Graph(nn.Module):
    """Messages along the edges of a graph, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.message, self.end = nn.Linear(8, 16), nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        state = self.begin(nodes).relu()
        for _ in range(2):
            sent = self.message(torch.cat([state[edges[0]], state[edges[1]]], -1)).tanh()
            state = state + torch.zeros_like(state).index_add(0, edges[1], sent)
        return self.end(state)


Step = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def _theirs(name: str, ending: str, sizes: dict[str, Any], given: dict[str, Tensor]) -> Callable[[], Step]:
    def made() -> Step:
        config = getattr(transformers, f"{name}Config")(**sizes)
        return getattr(transformers, f"{name}{ending}")(config), lambda model: model(**given).loss

    return made


def _graph() -> Step:
    edges, nodes = torch.randint(0, 10, (2, 30)), torch.randn(10, 8)
    return Graph(), lambda model: functional.cross_entropy(model(nodes, edges), torch.arange(10) % 3)


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Callable[[], Step]:
    return lambda: (
        Recurrent(kind),
        lambda model: functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()),
    )


READ = {"input_ids": TOKENS, "labels": TOKENS}
ALL: dict[str, Callable[[], Step]] = {
    **{name: _theirs(name, "ForCausalLM", sizes, READ) for name, sizes in CAUSAL.items()},
    "GPT2": _theirs("GPT2", "LMHeadModel", GPT, READ),
    **{name: _theirs(name, "ForMaskedLM", sizes, READ) for name, sizes in MASKED.items()},
    **{name: _theirs(name, "ForConditionalGeneration", sizes, READ) for name, sizes in PAIRED.items()},
    **{
        name: _theirs(name, "ForImageClassification", sizes, {"pixel_values": PICTURES, "labels": LABELS})
        for name, sizes in SEEING.items()
    },
    "LSTM": _recurrent(nn.LSTM),
    "GRU": _recurrent(nn.GRU),
    "graph": _graph,
}


def report(name: str, form: str) -> str:
    """A row: the architecture, what was checked, what was judged wrong."""
    torch.manual_seed(0)
    model, loss_of = ALL[name]()
    model = model.to({"bf16": torch.bfloat16, "fp64": torch.float64}.get(form, torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    try:
        with limpid.recording(model, optimizer) as recorded:
            with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
                loss = loss_of(model)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    except RuntimeError as error:
        return f"| {name} | {form} | PyTorch does not compute it: {str(error).splitlines()[0][:60]} | |"
    found = recorded.verify()
    unknown = ", ".join(sorted({call.operation.split(".")[1] for call in found.unchecked}))
    return (
        f"| {name} | {form} | {100 * found.checked_calls:.2f}% of {len(found.arithmetic)} calls, "
        f"{100 * found.checked:.2f}% of the arithmetic{f' (not {unknown})' if unknown else ''} | {len(found.wrong)} |"
    )


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description="A step of every architecture, all operations done again.")
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ALL))
    parser.add_argument("--format", nargs="+", default=["fp32", "autocast", "bf16", "fp64"], dest="forms")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    print("| architecture | format | checked | judged wrong |\n|---|---|---|---|")
    for name in given.names:
        for form in given.forms:
            print(report(name, form), flush=True)


if __name__ == "__main__":
    main()
