"""Engines: each holds a few sequences and takes one step for all of them at a time."""
