"""Weir: an overload-proof reverse proxy for LLM servers.

`core` decides and is pure, `contracts` holds the wire types, `runtime` is what every service shares, `console` is the
live page, `cli` the command line, and each other folder is one process. See docs/architecture/README.md.
"""

from services.compiled import use

use()
