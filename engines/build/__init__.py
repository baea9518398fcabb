"""Offline work on model files: fetch pinned weights and convert them. Nothing here serves."""
