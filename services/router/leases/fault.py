"""What a store of the exchange raises, for those that need no client library."""


class StoreFault(Exception):
    """The store could not be reached, refused the call, or answered with something else."""
