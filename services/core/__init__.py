"""The mechanisms of the scheduler, without I/O.

Nothing here reads a clock, sleeps, logs, awaits or draws a random number. Time is the argument `now` (seconds,
monotonic). A method returns what the async caller must wake, close or reject. So tests prove every bound in virtual
time, and the simulator runs these same classes. See docs/architecture/mechanisms/README.md.
"""
