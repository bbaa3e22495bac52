"""Closed-loop users for Locust: they ask, wait for the answer, think and ask again.

    locustfile.py -> playing -> shapes, placing (the number of users now)
                             -> visitor (one user) -> verdict (the value of an answer)
                             -> run, ledger -> summary

`loadtests/scenarios/people.py` reads the scenario files for them. The open loop's code (`loadtests.load.answer` and
`retry`) reads answers and decides on retries. Nothing here imports the services.
"""
