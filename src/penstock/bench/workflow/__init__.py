"""A benchmark from nothing to a report: steps, experiments in processes of their own, an exit
handler that always runs, and a registry by which what a killed run left is found.

    engine       steps that need each other         record       how far they are: workflow.json
    run          the steps of a benchmark           site         its data set and its store
    measuring    the step of one experiment         child        a program that a step waits for
    making       the program that makes data sets   parts        what comes from other packages
    checks       can it run here                    surroundings what it ran on
    registry     what runs there are                cleaning     what a killed one has left
    remote       what it has in object stores       view         what a person sees meanwhile

It measures nothing itself and draws no figure: see penstock.bench.experiments and
penstock.bench.reporting.
"""
