"""From the bytes and headers of a request to one shape: what it asks for, its class and its deadline."""
