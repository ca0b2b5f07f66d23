"""The verbs of the command line as functions and objects, for notebooks and platforms."""
