"""An inference worker: one engine, a fixed number of slots and a bounded queue.

api       HTTP requests in, events out
batching  the loop: admit, compute one step, deliver
engine    the engine protocol; engines/ holds the implementations
"""
