"""Benchmarks: what is asked, how an answer is read, and what a set of answers is worth."""

from heal.bench.catalogue import create, tasks
from heal.bench.task import Sample, Task

__all__ = ["Sample", "Task", "create", "tasks"]
