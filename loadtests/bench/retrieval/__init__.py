"""Retrieval measured: latency under faults, throughput, and the cost of embedding.

`make bench` measures the same on a small tenant, with short loads. The tenant is generated (`corpus.py`) and searched
through the graph at any size.
"""
