"""Backups and restores, while a gateway runs."""
