"""The miniature world: scenes with exact ground truth, images, captions, questions and answers."""

from heal.world.world import View, World

__all__ = ["View", "World"]
