"""The operator's side: what the router sees, and what a person may turn while it runs."""
