"""Does every client get its own answer, and the whole of it, whatever its worker does?

Every prompt carries a nonce that the right answer repeats; `judge` reads each answer against it, byte for byte.
`python -m loadtests.runs.nonces` asks thousands of such questions while workers are killed, frozen and joined by one
that misbehaves (`loadtests.faults.evil`), and counts what nobody may ever get: somebody else's nonce, or a wrong answer
told as a whole one.
"""
