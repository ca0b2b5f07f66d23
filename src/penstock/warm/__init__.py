"""What is fetched before it is asked for: whole-dataset loads and epoch plans, and what runs them.

Charter: decides which files come next, how many at once and how far ahead; the cache fetches them
and the kernel keeps them. Nothing here answers a reader, and a reader never waits for anything
here: whoever comes too early joins the fetch that is under way.
"""
