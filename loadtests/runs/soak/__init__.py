"""The whole stack under load for minutes or hours: which resources grow?"""
