"""The parts of a transformer layer, as small functions over tensors."""
