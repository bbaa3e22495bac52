"""Benchmarks: `make bench`. Each is a module that measures figures with targets; most have a page in docs/results.

`table` lists them and defines their interface. They are not tests: machines differ.
"""
