"""A stand-in for `trtllm-serve`: its routes, shapes and faults, and no model."""
