"""The operator's side: an API with its own listener and key, never part of the public one."""
