"""From a results tree to what people read. Reads the results of a run; measures nothing.

    results_tree the tree, as values (results)     estimates    means, intervals, tests, formats
    rows         repeats put together; MEASURES    verdict      the sentences at the top
    goals        what the plan asks of figures     summary      all of it, and summary.json
    charts       what each chart shows             drawing      how matplotlib draws it
    page         report.html, report.md            comparing    two runs side by side
    tables       a table, in a terminal and Markdown

No threads. Of the rest of the benchmark only the declaration of goals is imported, so that results
can be reported by themselves.
"""

from penstock.bench.reporting.comparing import Comparison, compare
from penstock.bench.reporting.page import write
from penstock.bench.reporting.summary import Summary

__all__ = ["Comparison", "Summary", "compare", "write"]
