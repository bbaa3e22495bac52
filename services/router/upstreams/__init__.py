"""How each kind of worker is spoken to: `weir` (our own event stream) and `openai` (any OpenAI-compatible server).

`call` is what they share: what is asked of any worker, and what comes back.
"""
