"""Real verl training on a CPU: what `verl-prometheus demo`, the tests and the recorded scenarios run.

Pinned to verl 0.9.1 (extra `demo`): the CPU platform leans on internals of exactly that version.
"""
