"""What is judged alike in the world, in virtual time, and over real processes; it knows no clock, socket or process.

nonces     a question that no other resembles, and its one right answer
answers    what a client may believe of the bytes that it got
rules      what client, router log, metrics and workers must agree on
"""
