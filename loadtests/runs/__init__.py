"""Runs that judge the whole of Weir: against others, under attack, restarted, for long."""
