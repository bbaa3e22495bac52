"""The console's page: its files, the stream of frames, and the check of writes.

It knows no service. The caller gives a function that makes a frame, called only while there are viewers.
"""
