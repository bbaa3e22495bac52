"""Every scenario with people, one after another, against a router that runs, as one page: docs/results/locust.md.

playing (Locust, headless) + watching (what the router says meanwhile) -> page
"""
