"""The whole stack under load for minutes or hours: does anything grow that should stay?"""
