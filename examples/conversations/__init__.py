"""Two hundred recorded agent conversations, served as tools: the real input of `make demo` and of its tests.

The conversations, the eight stateful APIs they call and the published function schemas come from the
`bfcl-eval` distribution (Apache-2.0). Run with `PYTHONPATH=examples`.
"""
