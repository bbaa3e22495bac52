"""Clients of the two kinds of workers: `weir` and `openai`."""
