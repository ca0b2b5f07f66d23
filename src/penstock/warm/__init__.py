"""Prefetching by plan: whole-dataset loads and epoch plans, and what runs them.

Charter: decides which files come next, how many at once and how far ahead; the cache fetches them
and the kernel keeps them. Nothing here answers a reader, and no reader waits for anything here: a
reader that is too early joins the fetch in flight.

    prefetcher   runs feeds: takes wanted blocks from them and fetches, under `pace`
    planned      an epoch plan as a feed; order: the plan in shared memory
    load         a load (`penstock warm`) as a feed; selection: its files; survey: what is cached
    page_cache   what the page cache holds, and the budget for it; residency: the probe's process
    regions      loads regions of files that are read at random; advice: the process that does it
    simulate     predicts a training run: epochs, stalls, bytes, requests
"""
