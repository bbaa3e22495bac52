"""Users who ask, wait for their answer, think and ask again: what Locust plays.

    locustfile.py -> playing -> shapes, placing (how many users there are now)
                             -> visitor (one user) -> verdict (what an answer was worth)
                             -> run, ledger -> summary

Scenarios are the files of `loadtests/scenarios`, which `people.py` there reads for people. Answers are
read, and asked for again, by the open loop's code (`loadtests.load.answer` and `retry`). What is here needs Locust,
these packages and the modules that lie flat in `loadtests`; of the services it takes nothing.
"""
