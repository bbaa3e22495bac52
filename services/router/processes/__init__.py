"""Several equal router processes on one port, under a small parent (decision record 086)."""
