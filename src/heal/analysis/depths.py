"""Where and how hidden states are compared with those of the visual tokens."""

DEPTHS = ("input", "middle", "output")
"""The input of the first layer, that of the middle layer, and the last hidden states."""
SUMMARIES = ("max", "top", "mean")
"""Of the similarities to all visual tokens: the largest, the mean of the five largest, and the mean."""
TOP = 5
