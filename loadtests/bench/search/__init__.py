"""The quality of the search: three benchmarks, each with a page, with one embedder and one kind of database.

recall      recall and latency, compared with an exact search
hybrid      ranking by vectors, by words, and by both
semantic    error rate of a cache of questions
"""
