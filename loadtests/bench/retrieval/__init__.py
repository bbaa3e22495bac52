"""Retrieval's figures: does an answer come in time whatever is wrong, how many a second, what does embedding cost.

    python -m loadtests.bench retrieval        all of it
    make bench                                 the same on a small tenant, with short loads

Service, database, cache, proxies and client share the machine's cores. The tenant is generated (`corpus.py`) and is
searched through the graph however small it is.
"""
