"""One request from its arrival to its end: `pipeline` has the order, and each step is one module."""
