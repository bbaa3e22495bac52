"""Weir: an overload-proof reverse proxy for LLM servers.

`core` decides and is pure, `contracts` holds the wire types, `runtime` is what every service shares, and each other
folder is one process. See docs/architecture/README.md.
"""
