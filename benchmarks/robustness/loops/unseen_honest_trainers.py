"""Honest runs under trainers: transformers' Trainer, TRL, accelerate, Lightning, each with something unusual."""

import copy
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import ALPHABET, BOS, EOS, PAD, VOCABULARY, corpus, sentences, text
from benchmarks.robustness.loops.unseen_honest_tools import quantity
from torch import Tensor, nn
from torch.nn import functional as F


def told(run: Run, trainer: Any) -> None:
    """Catches each batch as it goes into `compute_loss`, and tells the doctor after each update."""
    from transformers import TrainerCallback

    caught: list[Any] = []
    losses: list[float] = []
    compute = trainer.compute_loss

    def catching(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        caught.append({name: value for name, value in inputs.items() if torch.is_tensor(value)})
        out = compute(model, inputs, *args, **options)
        losses.append(float((out[0] if isinstance(out, tuple) else out).detach()))
        return out

    trainer.compute_loss = catching

    class Tell(TrainerCallback):  # type: ignore[misc]
        doctor: Any = None

        def on_train_begin(self, *args: Any, **options: Any) -> None:
            self.doctor = run.watch(trainer.model, trainer.optimizer, scheduler=trainer.lr_scheduler)

        def on_optimizer_step(self, *args: Any, **options: Any) -> None:
            loss = sum(losses) / len(losses)
            self.doctor.step(loss, caught[0] if len(caught) == 1 else list(caught))
            run.note(loss)
            caught.clear()
            losses.clear()

    trainer.add_callback(Tell())


def quiet(run: Run, folder: str, steps: int, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"output_dir": folder, "max_steps": steps, "report_to": [], "use_cpu": True}
    settings |= {"save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no", "dataloader_pin_memory": False}
    return settings | {"seed": run.draw.randrange(10_000)} | options


class Pictures(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Waves along one side or the other, of drawn phase: four patches of sixteen are enough to see the rest."""

    def __init__(self, rows: int) -> None:
        down, right = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
        angle, phase = 1.57 * torch.randint(0, 2, (rows, 1, 1, 1)), 6.28 * torch.rand(rows, 1, 1, 1)
        self.x = (0.35 * (down * angle.cos() + right * angle.sin()) + phase).sin() + 0.1 * torch.randn(rows, 1, 12, 12)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[row]}


@honest("nh-trainer-masked-pictures")
def masked_pictures(run: Run) -> None:
    """Trainer on a masked autoencoder: three quarters of the patches are hidden, anew in every pass, and predicted.

    The model returns its own loss, over hidden patches alone; the encoder sees four patches of sixteen. There are no
    labels. The positions are fixed sines which need no gradient.
    """
    from transformers import Trainer, TrainingArguments, ViTMAEConfig, ViTMAEForPreTraining

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 3}
    settings |= {"intermediate_size": 64, "image_size": 12, "num_channels": 1, "decoder_hidden_size": 32}
    settings |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4, "decoder_intermediate_size": 64}
    model = ViTMAEForPreTraining(ViTMAEConfig(**settings, mask_ratio=0.75, initializer_range=0.05))
    row, width = torch.arange(17.0)[:, None] - 1, torch.arange(8.0)  # transformers 5.23 leaves the positions zero
    angles = torch.cat([(row // 4) / 3**width * 4, (row % 4) / 3**width * 4], 1)
    with torch.no_grad():
        for places in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
            places.copy_(torch.cat([angles.sin(), angles.cos()], 1))
    with tempfile.TemporaryDirectory() as folder:
        options = quiet(
            run, folder, 160, per_device_train_batch_size=24, learning_rate=6e-3, lr_scheduler_type="constant"
        )
        trainer = Trainer(model=model, args=TrainingArguments(**options), train_dataset=Pictures(400))
        told(run, trainer)
        trainer.train()


class Weighted(torch.utils.data.Dataset[dict[str, Any]]):
    """Documents of which one in twelve has letters turned into q; those are the class that matters."""

    def __init__(self, run: Run) -> None:
        documents = sentences(run.draw.randrange(1000))
        run.draw.shuffle(documents)
        for document in documents[::12]:
            for _ in range(4):
                document[run.draw.randrange(2, len(document) - 1)] = 4 + ALPHABET.index("q")
        self.rows = [(document, int(i % 12 == 0)) for i, document in enumerate(documents)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        ids, label = self.rows[row]
        return {"input_ids": ids.tolist(), "labels": label}


def filled(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [PAD] * (longest - len(row["input_ids"])) for row in rows])
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


@honest("nh-trainer-rare-class-weighted")
def rare_class(run: Run) -> None:
    """Trainer on BERT with one class in twelve, weighted eleven times in a loss of the user's own, length-grouped rows.

    The bias of the head starts at even odds because the weights make the classes even. Gradients of three pieces are
    accumulated; judged by the rank of the rare rows.
    """
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"vocab_size": VOCABULARY, "intermediate_size": 64, "hidden_dropout_prob": 0.0, "num_labels": 2}
    model = BertForSequenceClassification(BertConfig(**settings, initializer_range=0.05))
    data = Weighted(run)

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            inputs = dict(inputs)
            labels = inputs.pop("labels")
            out = model(**inputs)
            each = F.cross_entropy(out.logits, labels, reduction="none") * torch.where(labels == 1, 11.0, 1.0)
            loss = each.sum() / torch.where(labels == 1, 11.0, 1.0).sum()
            return (loss, out) if return_outputs else loss

    @torch.no_grad()
    def rank() -> float:
        batch = filled([data[i] for i in range(160)])
        labels = batch.pop("labels").bool()
        model.eval()
        logits = model(**batch).logits
        model.train()
        score = logits[:, 1] - logits[:, 0]
        return float((score[labels][:, None] > score[~labels][None]).float().mean())

    quantity(run, rank())
    with tempfile.TemporaryDirectory() as folder:
        options = quiet(run, folder, 60, per_device_train_batch_size=16, learning_rate=4e-3, warmup_steps=5)
        options |= {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 3}
        trainer = Own(model, TrainingArguments(**options), filled, data)
        trainer.model_accepts_loss_kwargs = False  # our own loss is a mean over a piece: let it be divided by three
        told(run, trainer)
        trainer.train()
    quantity(run, rank())


def letters() -> Any:
    """A tokenizer of single letters, made here."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", "<mask>", *ALPHABET]
    own = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<mask>"))
    own.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=own, **special)


def small_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 128}
    settings |= {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return LlamaForCausalLM(LlamaConfig(**settings, tie_word_embeddings=True))


def read_before(model: nn.Module, tokens: Tensor, steps: int) -> None:
    """Unwatched: the model has read the language before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        starts = torch.randint(0, len(tokens) - 24, (8,)).tolist()
        ids = torch.stack([tokens[s : s + 24] for s in starts])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@honest("nh-trl-adapters-on-completions")
def adapters(run: Run) -> None:
    """TRL's supervised fine-tuning with low-rank adapters (peft) on completions alone: prompts are not scored.

    One matrix of every adapter is zero at first, so the other has no gradient in the first step; one weight in ten or
    so is trained, with a rate ten times the usual one. The completion is the prompt's first word again.
    """
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    seed = run.draw.randrange(1000)
    model = small_llama()
    read_before(model, corpus(seed), 60)
    parts = [part for part in text(seed, 12_000).split(". ") if part.count(" ") == 4]
    rows = [{"prompt": part + ".", "completion": " " + part.split(" ")[0] + "."} for part in parts]
    adapter = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    with tempfile.TemporaryDirectory() as folder:
        options = quiet(
            run, folder, 60, per_device_train_batch_size=12, learning_rate=1e-2, lr_scheduler_type="constant"
        )
        args = SFTConfig(**options, completion_only_loss=True, max_length=96, bf16=False, gradient_checkpointing=False)
        trainer = SFTTrainer(model, args, train_dataset=Dataset.from_list(rows), processing_class=letters(),
                             peft_config=adapter)  # fmt: skip
        told(run, trainer)
        trainer.train()


@honest("nh-trl-preferences-from-ln-two")
def preferences(run: Run) -> None:
    """TRL's direct preference optimisation: the loss starts at ln 2 exactly, as the model is its own reference then.

    The first step's margins are zero by definition. Rates are small, and the likelihood of chosen answers may fall too:
    it is the margin that counts.
    """
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    seed = run.draw.randrange(1000)
    model = small_llama()
    read_before(model, corpus(seed), 60)
    parts = [part for part in text(seed, 9_000).split(". ") if part.count(" ") == 4]
    rows = []
    for part in parts:
        words = part.split(" ")
        prompt = " ".join(words[:3])
        rows.append({"prompt": prompt, "chosen": f" {words[3]} a.", "rejected": f" {words[3]} {words[4]}."})
    with tempfile.TemporaryDirectory() as folder:
        options = quiet(run, folder, 40, per_device_train_batch_size=8, learning_rate=5e-4, warmup_steps=4)
        args = DPOConfig(**options, beta=0.2, max_length=96, bf16=False, gradient_checkpointing=False)
        reference = copy.deepcopy(model)
        trainer = DPOTrainer(model, reference, args, train_dataset=Dataset.from_list(rows), processing_class=letters())
        told(run, trainer)
        trainer.train()


@honest("nh-accelerate-state-space")
def state_space(run: Run) -> None:
    """accelerate with accumulation over two pieces of a diagonal state-space model that copies letters from far back.

    The clipped, averaged gradient is applied every second piece; the prepared optimizer leaves out the other updates by
    itself. The recurrence's poles are kept below one by their form and have no weight decay and a tenth of the rate.
    """
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    class Poles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Embedding(8, 32), nn.Linear(32, 8)
            self.raw = nn.Parameter(torch.linspace(0.0, 4.0, 32))
            self.gate, self.mix = nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            x = self.into(ids)
            state, states, keep = torch.zeros_like(x[:, 0]), [], torch.sigmoid(self.raw)
            for at in range(ids.shape[1]):
                state = keep * state + (1 - keep) * x[:, at] * torch.sigmoid(self.gate(x[:, at]))
                states.append(state)
            hidden = torch.stack(states, 1)
            return {"logits": self.out(hidden + self.mix(hidden / (1e-3 + hidden.std(-1, keepdim=True))))}

    ids = torch.randint(1, 8, (800, 14))
    answers = torch.cat([torch.full((800, 3), -100), ids[:, :-3]], 1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = Poles()
    slow: dict[str, Any] = {"params": [model.raw], "lr": 5e-4, "weight_decay": 0.0}
    others: dict[str, Any] = {"params": [p for n, p in model.named_parameters() if n != "raw"]}
    optimizer: Any = torch.optim.AdamW([others, slow], lr=1e-2, weight_decay=0.01)
    loader: Any = DataLoader(TensorDataset(ids, answers), batch_size=20, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    doctor = run.watch(model, optimizer)
    pieces: list[Any] = []
    total = 0.0
    for _ in range(4):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x)["logits"].flatten(0, 1), y.flatten())
                accelerator.backward(loss)
                pieces.append((x, y))
                total += float(loss.detach()) / 2
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                doctor.step(total, pieces)
                run.note(total)
                pieces, total = [], 0.0
