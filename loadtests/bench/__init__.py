"""Benchmarks: `make bench`. Each prints its figure, its target and the machine, and writes docs/results/bench.md.

Nothing here is a test: machines differ. The router runs on one core; the stub and the client share the other.
"""
