"""Real models: transformers' continuous batching behind the engine protocol. Needs the extra `torch`.

`spec` says which model and where, without importing torch, so that a parent process can write it down. `loading.load`
makes a `TorchEngine` of it, in the process that is to compute.
"""
