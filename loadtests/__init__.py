"""Benchmarks: CPU per request as a ratio to a baseline in the same run, never a timed test.

* :mod:`loadtests.processes`: targets as processes, pinned to a core; CPU clocks of a whole process tree.
* :mod:`loadtests.load`: the load: a fixed number of connections, all requests sent together, wait for all, again.
* :mod:`loadtests.baseline`: the table that ``make bench`` prints.

Why CPU and why together: on shared cores throughput and latency say more about the neighbours than about the server,
and a server's CPU per request depends on how many requests it finds when it wakes, so the load is fixed.
"""
