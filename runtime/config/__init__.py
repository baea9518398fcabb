"""The config file: its keys, environments, variables, secrets, and every fault with its path."""
