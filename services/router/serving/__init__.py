"""The life of one request: `pipeline` tells it in order, and each of its steps opens one file."""
