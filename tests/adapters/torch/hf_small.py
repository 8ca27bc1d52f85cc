"""A tiny Llama that a `Trainer` trains on the CPU: dropout, a schedule, two epochs and a half, uneven accumulation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import perdure

logging.getLogger("transformers").setLevel(logging.ERROR)


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """22 short texts."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(9) * (index + 3)) % 50
        return {"input_ids": ids, "labels": ids}


def trainer_of(folder: Path, callback: Any, *more: Any, steps: int = 10, **options: Any) -> Trainer:
    """A new trainer, as after a restart."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=0.2, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    arguments = TrainingArguments(
        str(folder / "trainer"), max_steps=steps, per_device_train_batch_size=3, gradient_accumulation_steps=2,
        learning_rate=1e-2, lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, seed=7, **options,
    )  # fmt: skip
    return Trainer(LlamaForCausalLM(config), arguments, train_dataset=Numbers(), callbacks=[callback, *more])


def train(folder: Path, *more: Any, every: int = 2, saving: Mapping[str, Any] | None = None, **options: Any) -> Trainer:
    """Train to the end, from where the run in ``folder`` is; ``saving`` are options of the callback."""
    callback = perdure.TrainerCallback(folder / "run", every=every, agent=False, **saving or {})
    trainer = trainer_of(folder, callback, *more, **options)
    trainer.train(resume_from_checkpoint=callback.resume_from(trainer))
    return trainer
