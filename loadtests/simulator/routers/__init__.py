"""Several routers before one pool of workers: the product's schedulers and leases, and a network that can fail."""
