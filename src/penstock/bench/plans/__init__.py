"""What a benchmark is to measure: a plan in YAML, and the experiments that it comes to.

model      the values, and what one experiment is told (its CONFIG.json)
known      arms that have a name          fields     a plan as people write it
reading    YAML to a Plan                 expansion  a Plan to its experiments
template   the plan to begin with         sizes      how large a data set will be
"""
