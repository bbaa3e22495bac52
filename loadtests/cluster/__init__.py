"""Services in one process: event loops on one virtual clock, joined by a network in memory, with seeded faults."""
