"""Parts that all results share: a figure with its target, the machine, a page and a plot."""
