"""The mechanisms, pure: stdlib data types in, decisions out.

Nothing here reads a clock, sleeps, logs, awaits, draws a random number or touches the world. Time is the argument
`now` (seconds, monotonic); a method returns what must be woken, closed or refused, and the async shell does it.
So every bound in this folder can be proven in virtual time, and the simulator drives these classes, not copies.
"""
