"""The quality of a search: three benches, each with a page, with one embedder and one kind of database.

recall      does the search find what an exact one finds, and how soon
hybrid      ranking by meaning, by words, and by both
semantic    how often a cache of questions would be wrong
"""
