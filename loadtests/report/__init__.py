"""What every result is told with: a figure with its target, the machine that it was measured on, a page, a plot."""
