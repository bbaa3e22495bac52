"""Every Locust scenario in turn against a running router, as one page: docs/results/locust.md.

playing (Locust, headless) + watching (the router's metrics) -> page
"""
