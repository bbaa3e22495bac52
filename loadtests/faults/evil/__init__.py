"""A worker that misbehaves in every way we could think of: a real server on a real socket, and a table of tricks.

It announces itself as an honest one does and passes every probe. What it does to an answer is a trick
(`loadtests.faults.evil.tricks`); what a client may then see of it stands beside the trick in the same table.
"""
