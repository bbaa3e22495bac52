"""A discrete-event simulator: scheduling policies on a virtual clock, against simulated workers and clients.

`scenario` says what happens, `engine` makes it happen, `report` says how it went. The policy under test is behind the
protocol in `policy`; Weir's is an adapter over the classes that the router runs, never a model of them.
"""
