"""Methods against hallucination: one interface, one registry, one file a method."""

from heal.methods.base import Fired, Handle, Method, available, create, parse
from heal.methods.heal import HEAL

__all__ = ["HEAL", "Fired", "Handle", "Method", "available", "create", "parse"]
