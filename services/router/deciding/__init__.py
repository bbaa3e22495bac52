"""Scheduling: the asynchronous dispatcher around `services.core`, which decides."""
