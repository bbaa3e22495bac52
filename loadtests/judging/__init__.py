"""Rules that judge a run, in the world's virtual time and over real processes. No clock, socket or process here.

nonces     a unique question, and its only right answer
answers    the verdict on an answer, from its bytes
rules      where client, router log, metrics and workers must agree
"""
