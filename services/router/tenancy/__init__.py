"""Tenants: identification, keys, rates, and the tenants file."""
