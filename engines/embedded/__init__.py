"""The embedded engine: a paged, tagged, continuously batching llama on plain torch.

Start reading at `engine.py`; `seq`, `pages`, `prefix`, `tables` and `scheduler` need no torch.
"""
