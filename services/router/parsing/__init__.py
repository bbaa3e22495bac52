"""Parses the bytes and headers of a request into one form for all routes."""
