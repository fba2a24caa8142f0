"""Benchmarks: what is asked, how an answer is read, and what a set of answers is worth."""

from heal.bench.tasks.base import Sample, Task
from heal.bench.tasks.catalogue import available_tasks, create

__all__ = ["Sample", "Task", "available_tasks", "create"]
