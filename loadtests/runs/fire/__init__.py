"""The router under fire: real processes, real sockets, up to ten times what the workers can do; targets held or not.

A stand (workers, and a router before them) is started on free ports of loopback, its capacity is measured with a
closed loop at the workers themselves, and every load is a multiple of that. So figures of machines that differ, or
that are busy, can be compared.
"""
