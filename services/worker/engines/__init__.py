"""Implementations of the engine protocol (`services.worker.engine`)."""
