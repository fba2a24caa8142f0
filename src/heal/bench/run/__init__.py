"""Running benchmarks: answers, run folders and processes."""
