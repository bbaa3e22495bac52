"""Faults in every part of the stack: does each request end exactly once, with its own answer?

parts                            the parts of a run; finished parts are kept, so that a run can resume
schedule -> injection            the schedule of faults, and their injection
questions -> listener            the requests, and the answer of each client
logs -> checker                  the logs of router and workers, and whether everything agrees
leavers                          clients that disconnect at twelve stages
"""
