"""The node: one machine's hosts, as many as are needed, within one memory budget."""
