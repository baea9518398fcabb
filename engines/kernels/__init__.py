"""What a step does to whole arrays at once: in numpy, in torch, and for CUDA, all twins.

Told arrays and numbers; never told seqs, pools or batches.
"""
