"""The baselines, and the adapter to Weir's scheduler."""
