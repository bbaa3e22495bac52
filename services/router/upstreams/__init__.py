"""How each kind of worker is spoken to: `weir` (our own event stream) and `openai` (any OpenAI-compatible server)."""
