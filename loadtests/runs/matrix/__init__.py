"""Scenarios on real processes, each played by Weir and by others before the same workers, as one page.

    cases -> playing (a stand, its capacity, a subject before it) -> play -> cells -> page, pictures, README

Each result is kept as it comes, so that a run that is interrupted goes on where it was. What is shown is read off what
was kept, and nothing else: `matrix.json` is the source of the page, of its pictures and of the README's table.
"""
