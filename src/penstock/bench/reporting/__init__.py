"""From a results tree to what people read. Reads what a run left behind; measures nothing.

    reading     the tree, as values (results)     raw          its long lists, when drawn
    rows        repeats put together              intervals    means, intervals, tests
    fed         accelerators fed                  cost         what GETs cost
    verdict     the sentence on top               words        figures as people read them
    summary     all of it, and summary.json       glance       one table; tiles: a few figures
    page        report.html                       markdown     report.md
    charts      one module for each               blocks       tables of the page
    markup      HTML by parts                     svg, palette what charts draw with
    comparing   two runs side by side

No threads. Nothing is imported from other parts of the benchmark, so that results of any release
can be reported by themselves.
"""

from penstock.bench.reporting.comparing import Comparison, compare
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.writing import summarize, write

__all__ = ["Comparison", "Summary", "compare", "summarize", "write"]
