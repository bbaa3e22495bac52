"""The desk: it lends slots of servers that cannot lend, to several routers (docs/operations/several-routers.md)."""
