"""Benchmarks of foveal, alone and beside its rivals: the command foveal-bench."""
