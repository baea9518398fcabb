"""Models behind one protocol. Knows tensors; never HTTP, identity or money."""
