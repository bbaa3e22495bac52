"""What batching is worth on real models, and its cost: `python -m loadtests.bench batching`, docs/results/batching.md.

    throughput  continuous against static batching, useful tokens a second
    stall       a long prompt joins seven that write
    cancel      how soon a slot is free, and that nothing is computed for who has left
    border      what the worker's loop and the engine's own process cost

Everything that knows torch, a device or a number format is in `subject`. Nothing here is a test: machines differ.
"""
