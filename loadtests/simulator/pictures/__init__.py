"""The pictures of the mechanism pages, and the figures behind them.

    recipes    plots of the simulator's own: which scenario, what is changed in it, and what is looked at
    closeups   what no comparison shows: predictions, the estimate of capacity
    batches    steps of one worker, and what a window does

Each picture is a scenario that ships with the simulator, run with its own seed. The figures behind a picture are a CSV
file beside it.
"""
