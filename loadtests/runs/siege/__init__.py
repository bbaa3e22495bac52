"""An honest tenant beside a thousand attacking clients: `python -m loadtests.runs.siege`.

`attacks` defines what each kind of attacker sends, `attackers` is the process that sends it, `run` plays each row
beside the honest tenant, and `judging` compares the measurements with the targets.
"""
