"""What a benchmark measures: a plan in YAML, and the experiments that it expands to.

model        a plan: its fields                    known_arms   arms that have a name
reading      YAML to a Plan                        experiments  what a plan expands to, and what
                                                                one experiment is given
"""
