"""How many steps of the interpreter a request takes in the router: a count that a busy machine does not change."""
