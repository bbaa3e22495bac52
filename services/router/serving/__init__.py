"""One request from its arrival to its end: `pipeline` has the order, and each of its steps opens one file."""
