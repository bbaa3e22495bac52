"""Retrieval measured: latency under faults, throughput, and the cost of embedding.

    python -m loadtests.bench retrieval        all of it
    make bench                                 the same on a small tenant, with short loads

Service, database, cache, proxies and client share the machine's cores. The tenant is generated (`corpus.py`) and
searched through the graph at any size.
"""
