"""One module for each chart. Each takes a Summary and gives a Figure, or a Missing with the reason.

A figure's table holds exactly the numbers that it draws. Nothing here writes files.

    figure      what a chart gives       bars, lines   how bars and lines are drawn
    speed       bars with intervals      accelerators  busy share against their number
    overtime    throughput by time       steps         load, compute, barrier
    latency     distribution of reads    origins       where the bytes came from
    processors  CPU and memory           requests      GETs, and what they cost
"""
