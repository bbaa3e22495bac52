"""Passages for a question: found by the retrieval service within a budget, and fitted into a prompt."""
