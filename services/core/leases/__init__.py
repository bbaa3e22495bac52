"""Levelled leases: several routers share the slots of a pool of workers, and shares hold over all of them.

A worker lends its slots (`book.py`), a router borrows them (`holding.py`, `borrower.py`), and the least served router
gets the next one (`turn.py`, `level.py`). What a tenant was served elsewhere is charged here (`exchange.py`,
`usage.py`). See docs/architecture/mechanisms/several-routers.md. No clock, no I/O: `now` is an argument, and every
method returns the messages to send.
"""
