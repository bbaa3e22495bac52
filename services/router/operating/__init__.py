"""The operator's side: /admin, the switches, and reloading of the files."""
