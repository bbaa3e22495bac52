"""Real models: transformers' continuous batching behind the engine protocol. Needs the extra `torch`.

`loading.load` makes a `TorchEngine` from a `TorchSpec`, which can be created without importing torch.
"""
