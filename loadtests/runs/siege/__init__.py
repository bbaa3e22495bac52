"""Does an honest tenant notice a thousand clients who misbehave? `python -m loadtests.runs.siege` finds out.

`attacks` says what each kind of attacker sends, and `attackers` is the process that sends it. `run` plays each row
beside the honest tenant, and `judging` compares what was measured with the targets.
"""
