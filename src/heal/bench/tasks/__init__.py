"""The benchmarks: data, prompts, parsing and counts."""
