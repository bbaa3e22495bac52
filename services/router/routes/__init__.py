"""The public routes, and their description."""
