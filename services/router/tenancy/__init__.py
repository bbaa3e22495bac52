"""Who is asking, and what each may use."""
