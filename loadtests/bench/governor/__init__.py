"""The governor's proofs, against a real process: `python -m loadtests.bench governor`, docs/results/governor.md.

    held    what ten thousand silent connections cost, and one that wants to send far too much
    burst   more clients than slots: what is refused at once, and that everybody is served in the end
    speed   how many pings and uploads one core carries

The wire and its idea are heptamini's (github.com/newssourcecrawler/heptamini). Nothing here is a test: machines differ.
"""
