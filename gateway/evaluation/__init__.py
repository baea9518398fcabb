"""`bulkhead eval`: a process that compares kinds of weights and KV, and what its figures cost."""
