"""The gain and the cost of batching on real models: `python -m loadtests.bench batching`, docs/results/batching.md.

    throughput  continuous against static batching, useful tokens a second
    stall       a long prompt joins seven decoding sequences
    cancel      how soon a slot is free, and that nothing is computed for clients that have left
    border      the cost of the worker's loop and of the engine's own process

Only `subject` knows torch, devices and number formats.
"""
