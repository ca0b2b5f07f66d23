"""What a benchmark measures: a plan in YAML, and the experiments that it expands to.

model      the values: a plan, its experiments, what one experiment is given (its CONFIG.json)
fields     a plan as people write it        reading    YAML to a Plan
"""
