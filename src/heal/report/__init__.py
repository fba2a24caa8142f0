"""Documents made of measured numbers."""
