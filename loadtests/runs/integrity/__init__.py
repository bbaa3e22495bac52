"""Does every request have exactly one end, and is its answer its own, whatever is done to every part of the stack?

parts                            what the run consists of; finished parts are kept, so that a run can go on
deck -> havoc                    what is done to which part of the stack, and when
questions -> listener            who asks what, and what each client got
logs -> checker                  what router and workers wrote down, and whether all of them agree
leavers                          clients that disconnect at twelve stages
"""
