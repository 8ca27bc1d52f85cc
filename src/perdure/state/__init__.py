"""The join of tensors and stores: what a manifest entry means for a live tensor, and how to save and load it."""
