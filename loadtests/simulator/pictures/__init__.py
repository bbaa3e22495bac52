"""The pictures of the mechanism pages, and the figures behind them.

    recipes    plots of the simulator: a scenario, its changes, and which plot
    closeups   predictions, the estimate of capacity, ways to a quantile
    batches    the steps of one worker, and windows of static batching

Each picture is a scenario that ships with the simulator, run with its own seed. The figures behind a picture are a CSV
file beside it.
"""
