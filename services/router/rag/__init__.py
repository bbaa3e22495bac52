"""Retrieval-augmented generation: passages from the retrieval service, and the prompt made of them."""
