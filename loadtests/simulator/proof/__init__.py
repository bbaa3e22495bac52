"""The proof: what Weir promises, as a table of figures with targets, measured beside what others do.

    cases     a named scenario at a load, with what is changed in it, and who is compared
    observe   one run of a case, watched more closely than a comparison needs it
    rows      the promises: which figure, of which cases, with which target
    execute   all runs that the rows need, each once, spread over the cores
    page      the table, in the terminal and as docs/results/proof.md

A target is judged by the worst seed. A miss is a result: it is printed as one.
"""
