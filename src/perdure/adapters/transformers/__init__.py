"""Hugging Face transformers: a callback by which a ``Trainer`` saves into a run and goes on from it."""
