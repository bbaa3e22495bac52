"""The front door. `api` parses, `pipeline` tells the story of a request, and each of its steps opens one file."""
