"""TensorRT-LLM as a backend: what its settings mean, what it is told, and what runs inside it.

Nothing here imports TensorRT-LLM but the modules that run within it.
"""
