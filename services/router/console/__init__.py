"""The console's data and routes."""
