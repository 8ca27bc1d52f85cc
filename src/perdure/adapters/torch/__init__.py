"""torch: modules and optimizers as named tensors, process groups as a fabric, `attach` for training loops."""
