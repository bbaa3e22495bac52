"""Benches: `make bench`. Each is a module that yields figures with targets; most of them have a page in docs/results.

`table` says which there are and what a bench has to have. Nothing here is a test: machines differ.
"""
