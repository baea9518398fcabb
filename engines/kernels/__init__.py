"""What a step does to whole arrays at once, in torch, with a twin for CUDA beside it.

Told tensors and numbers; never told seqs, pools or batches.
"""
