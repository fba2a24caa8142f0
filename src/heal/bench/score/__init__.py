"""Scores of a run, with bootstrap intervals."""
