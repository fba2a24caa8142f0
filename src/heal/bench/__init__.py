"""Benchmarks: tasks, runs and scores."""

from heal.bench.tasks.base import Sample, Task
from heal.bench.tasks.catalogue import available_tasks, create

__all__ = ["Sample", "Task", "available_tasks", "create"]
