"""The pictures of the mechanism pages, and the figures behind them.

    recipes    which scenario, what is changed in it, and what is looked at
    closeups   pictures of what no comparison shows: predictions, and the estimate of capacity
    batches    steps of one worker, and what a window does
    added      a table only: errors added beside errors multiplied
    page       the tables, for figures.md

Each picture is a scenario that ships with the simulator, run with the seed that it ships with, and drawn by the
simulator's own code. What a page says in numbers stands in figures.md beside the pictures.
"""
