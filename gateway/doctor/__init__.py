"""Looks at an installation and its machine: each thing in a small function, told in a line."""
