"""The governor measured as a real process: `python -m loadtests.bench governor`, docs/results/governor.md.

    held    the memory of ten thousand silent connections, and of one that sends far too much
    burst   more clients than slots: how soon the others are refused, and that all of them are served in the end
    speed   pings and uploads a second on one core

The wire format and its idea are heptamini's (github.com/newssourcecrawler/heptamini).
"""
