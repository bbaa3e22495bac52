"""How right and how fast a search is, by the tenant's share of all rows: `python -m bench.recall`.

The vectors are generated and clustered, as those of real texts are. A tenant with all rows comes first, then three more
with a tenth, a hundredth and a thousandth as many move in beside it. Each is searched exactly, through the graph as
pgvector does it unasked, and through the graph as retrieval does it; what is right is computed with numpy.
"""
