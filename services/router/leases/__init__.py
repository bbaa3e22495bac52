"""Levelled leases, as far as they are I/O: the exchange of the routers of a pool through Valkey or Redis.

The arithmetic is in `services/core/leases`. Nothing here is on the path of a request. Not wired into the router yet:
docs/architecture/mechanisms/several-routers.md.
"""
