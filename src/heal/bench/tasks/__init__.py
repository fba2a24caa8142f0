"""The benchmarks: their data, prompts, parsing and counts."""
