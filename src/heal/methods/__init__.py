"""Methods against hallucination: one interface, one registry, one file per method."""

from heal.methods.base import Fired, Handle, Method, available, create
from heal.methods.beam import Beam
from heal.methods.combined import Combined
from heal.methods.dola import DoLa
from heal.methods.guard import Guard
from heal.methods.heal import HEAL
from heal.methods.memvr import MemVR
from heal.methods.opera import OPERA
from heal.methods.pai import PAI
from heal.methods.parsing import parse
from heal.methods.sid import SID
from heal.methods.var import VAR
from heal.methods.vcd import VCD
from heal.methods.vhr import VHR

__all__ = [
    "HEAL",
    "OPERA",
    "PAI",
    "SID",
    "VAR",
    "VCD",
    "VHR",
    "Beam",
    "Combined",
    "DoLa",
    "Fired",
    "Guard",
    "Handle",
    "MemVR",
    "Method",
    "available",
    "create",
    "parse",
]
