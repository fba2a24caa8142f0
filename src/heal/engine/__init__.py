"""Attach a method to a transformers model: attention function, hooks, branches, and the state of a generation."""
