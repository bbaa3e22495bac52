"""Runs that judge the whole of Weir: beside other gateways, under attack, during restarts, and for hours."""
