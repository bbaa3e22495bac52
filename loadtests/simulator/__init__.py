"""A discrete-event simulator: scheduling policies on a virtual clock, with simulated workers and clients.

See docs/simulator.md. The policy `weir` is an adapter over the router's own scheduler, not a model of it.
"""
