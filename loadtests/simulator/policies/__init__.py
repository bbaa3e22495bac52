"""The baselines that Weir is compared with, each in a file of its own, and the adapter to Weir itself."""
