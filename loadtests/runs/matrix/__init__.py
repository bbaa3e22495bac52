"""The whole series on one page: scenarios, four policies before the same workers, and what held.

    plays -> scenarios -> stage (a stack, its capacity, a policy in force) -> cells -> page, pictures, README

`make report` starts the embedded stack on free ports, plays every scenario under every policy, and keeps each result as
it comes, so that a run that is interrupted goes on where it was. What is shown is read off what was kept, and nothing
else: `docs/results/REPORT.json` is the source of the page, of its pictures and of the README's table.
"""
