"""An inference worker: one engine, a few slots, a short bounded line, and no work for those who have left.

api       HTTP in, events out
batching  the loop: who joins, one step, deliver
engine    the protocol; engines/ holds those that speak it
"""
