"""Scenarios on real processes, each played by Weir and by other gateways before the same workers, as one page.

    cases -> playing (workers, their capacity, a subject before them) -> play -> cells -> page, pictures, README

Each result is kept at once, so that an interrupted run resumes. `matrix.json` is the only source of the page, of its
pictures and of the README's table.
"""
