"""Users who ask, wait for their answer, think and ask again: what Locust plays.

    locustfile.py -> playing -> scenario (who, when, how many) -> shapes, placing (how many there are now)
                             -> visitor (one user) -> verdict (what an answer was worth) -> run, ledger -> summary

Scenarios are data, in `loadtests/scenarios`. In Locust's own container nothing is installed but Locust: what is here
needs that, Python's library and the modules that lie flat in `loadtests`, and nothing else.
"""
