"""Scenarios: a file each, what such a file may say, and how the command line changes one."""
