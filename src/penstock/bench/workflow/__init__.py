"""A benchmark from nothing to a report: steps, experiments in processes of their own, an exit
handler that always runs, and a registry by which the remains of a killed run are found.

    run          the steps of a benchmark           engine       steps that need each other
    site         its data set and its store         checks       can it run here, and on what
    registry     known runs, and their removal      remote       what a run has in object stores
    view         progress on the terminal           history      where runs have put their results
    preview      what a run would do

It measures nothing itself and draws no figure: see penstock.bench.experiments and
penstock.bench.reporting.
"""
