"""Weir: an overload-proof front door for LLM inference.

The folders are the architecture. `core` decides and is pure, `contracts` is what crosses the wire, `runtime` is
the edge that every service shares, and each remaining folder is one process. See docs/architecture/README.md.
"""
