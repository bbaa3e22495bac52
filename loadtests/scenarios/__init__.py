"""Scenario files, their model, and changes from the command line."""
