"""How right and how fast a search is, by the tenant's share of all rows: `python -m loadtests.bench recall`.

Among generated vectors, clustered as those of real texts are, and among those of real sentences. A tenant with all rows
comes first, then three more with a tenth, a hundredth and a thousandth as many move in beside it. Each is searched
exactly, through the graph as pgvector does it unasked, and through the graph as retrieval does it, in half precision as
retrieval stores it and in full; what is right is computed with numpy.
"""
