"""A byzantine worker: a real server on a real socket, and a table of tricks.

It announces itself like an honest worker and passes every probe. `loadtests.faults.evil.tricks` lists what it does to
an answer, with what a client may see of it.
"""
