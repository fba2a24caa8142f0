"""Methods against hallucination: one interface, one registry, one file a method."""

from heal.methods.base import Fired, Handle, Method, available, create
from heal.methods.beam import Beam
from heal.methods.dola import DoLa
from heal.methods.heal import HEAL
from heal.methods.memvr import MemVR
from heal.methods.pai import PAI
from heal.methods.parsing import parse
from heal.methods.together import Together
from heal.methods.vcd import VCD
from heal.methods.vhr import VHR

__all__ = [
    "HEAL",
    "PAI",
    "VCD",
    "VHR",
    "Beam",
    "DoLa",
    "Fired",
    "Handle",
    "MemVR",
    "Method",
    "Together",
    "available",
    "create",
    "parse",
]
