"""The collapse and the cure, on real processes: the storm bench's scenarios with mechanisms off and on.

`python -m loadtests.bench storms` writes docs/results/storms.md.
"""
