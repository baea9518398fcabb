"""The operator's side: an API with a listener and a key of its own, never part of the public one."""
