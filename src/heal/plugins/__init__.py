"""Plugins for other programs, one module each. They are imported only by these programs."""
