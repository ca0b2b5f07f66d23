"""What Python programs and the command line call: `import penstock` exports its main names.

    resources  declare data sets, runtimes, operations and jobs; list, describe and delete them
    tables     resources as text, in the columns of kubectl

Each function raises `penstock.errors.PenstockError`, with a `hint`, where the command would print
an error. The modules import what lies below them when a function needs it, so that a command loads
neither models nor stores that it does not use. Threading: any thread.
"""
