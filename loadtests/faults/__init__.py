"""Injected faults: slow workers, failing connections and byzantine workers."""
