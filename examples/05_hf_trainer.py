"""A Hugging Face Trainer that saves into a run, and goes on bit for bit after whatever ended it.

python examples/05_hf_trainer.py --to checkpoints/trainer
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/trainer", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=6, help="steps of the whole training, over all starts")
args = parser.parse_args()

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, attention_dropout=0.1, **sizes))
texts = [{"input_ids": ids, "labels": ids} for ids in (torch.arange(16) * n % 50 for n in range(1, 25))]
options = TrainingArguments(
    output_dir="trainer-output", max_steps=args.steps, per_device_train_batch_size=4, learning_rate=1e-2,
    logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
)  # fmt: skip

callback = perdure.TrainerCallback(args.to, every=2)
trainer = Trainer(model, options, train_dataset=texts, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_from(trainer))
for each in trainer.state.log_history[:-1]:
    print(f"step {each['step']} loss {each['loss']!r}")
