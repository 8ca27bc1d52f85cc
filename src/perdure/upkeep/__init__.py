"""What is done to a run that lies in a store: look into it, prove it, mend it, keep it small. Needs no live tensors."""
