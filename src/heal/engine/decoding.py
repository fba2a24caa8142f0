"""Options of generate() that a run may set, with their types, bounds and text form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heal import values
from heal.errors import ConfigError, shortened


@dataclass(frozen=True)
class Choice:
    """The type and the bounds of an option. Bounds are included unless they are open."""

    kind: type
    low: int | float = -math.inf
    high: int | float = math.inf
    open_low: bool = False
    open_high: bool = False
    word: str = ""
    """A word that is also accepted."""

    def parse(self, text: str, name: str) -> Any:
        if self.word and text.strip().lower() == self.word:
            return self.word
        read = {bool: values.boolean, int: values.whole, float: values.number}[self.kind]
        return read(text, name)

    def check(self, value: Any, name: str) -> None:
        if self.word and value == self.word:
            return
        if not self._has_type(value):
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}[self.kind]
            raise ConfigError(f"{name} cannot be {value!r}: give {wanted}")
        if self.kind is not bool and not (
            math.isfinite(value)
            and (self.low < value if self.open_low else self.low <= value)
            and (value < self.high if self.open_high else value <= self.high)
        ):
            raise ConfigError(f"{name} cannot be {value}: it must be {self._bounds()}")

    def _has_type(self, value: Any) -> bool:
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool
        return isinstance(value, int) or (self.kind is float and isinstance(value, float))

    def _bounds(self) -> str:
        low = f"more than {self.low:g}" if self.open_low else f"{self.low:g} or more"
        high = f"less than {self.high:g}" if self.open_high else f"at most {self.high:g}"
        parts = [low] * math.isfinite(self.low) + [high] * math.isfinite(self.high)
        return " and ".join(parts) or "a finite number"


SHARE = Choice(float, 0, 1, open_low=True)
CUTOFF = Choice(float, 0, 1, open_high=True)

SAMPLING = {
    "temperature": Choice(float, 0, open_low=True),
    "top_k": Choice(int, 0),
    "top_p": SHARE,
    "min_p": Choice(float, 0, 1),
    "top_h": SHARE,
    "typical_p": SHARE,
    "epsilon_cutoff": CUTOFF,
    "eta_cutoff": CUTOFF,
}
"""Options that have an effect with do_sample=true only."""

OPTIONS: Mapping[str, Choice] = {
    "do_sample": Choice(bool),
    "num_beams": Choice(int, 1, 256),
    "early_stopping": Choice(bool, word="never"),
    "length_penalty": Choice(float),
    **SAMPLING,
    "repetition_penalty": Choice(float, 0, open_low=True),
    "no_repeat_ngram_size": Choice(int, 0),
    "min_new_tokens": Choice(int, 0),
    "renormalize_logits": Choice(bool),
    "remove_invalid_values": Choice(bool),
}

OWN = {
    "max_new_tokens": "it has an option of its own",
    "num_return_sequences": "a sample has one answer",
    "generation_config": "give its values one by one",
}


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts such as `num_beams=3`, `do_sample=true`, `temperature=0.7`. Each option may occur once."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(f"--generate {text!r}: write key=value, as num_beams=3")
        if name in found:
            raise ConfigError(f"--generate {name} is given twice")
        found[name] = _choice(name).parse(value, name)
    check_options(found)
    return found


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that generate() would refuse later, misread or ignore."""
    for name, value in options.items():
        _choice(name).check(value, name)
    if not options.get("do_sample") and (idle := [name for name in options if name in SAMPLING]):
        raise ConfigError(f"{idle[0]} has no effect without sampling: give do_sample=true with it")
    if "length_penalty" in options and options.get("num_beams", 1) == 1:
        raise ConfigError("length_penalty has no effect without beams: give num_beams with it")


BESIDES: Mapping[str, Choice] = {
    "use_cache": Choice(bool),
    "max_new_tokens": Choice(int, 1),
    "max_length": Choice(int, 1),
    "min_length": Choice(int, 0),
    "max_time": Choice(float, 0, open_low=True),
    "num_return_sequences": Choice(int, 1),
    "guidance_scale": Choice(float, -1e6, 1e6),
}
TOKENS = ("eos_token_id", "pad_token_id", "bos_token_id")


def check_values(options: Mapping[str, Any]) -> None:
    """Check the options that are known here. generate() checks the others. None means not given."""
    for name, value in options.items():
        choice = OPTIONS.get(name) or BESIDES.get(name)
        if choice is not None and value is not None:
            choice.check(value, name)
        if name in TOKENS and value is not None:
            for token in value if isinstance(value, (list, tuple)) else [value]:
                Choice(int, 0, 2**31).check(token, name)


def check_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed must be a whole number from 0 to 2^63 − 1, not {shortened(repr(seed), 60)}")


def _choice(name: str) -> Choice:
    if name in OWN:
        raise ConfigError(f"{name} cannot be an option of generate() here: {OWN[name]}")
    if name not in OPTIONS:
        raise ConfigError(f"generate() has no option {name!r} here: choose from {', '.join(OPTIONS)}")
    return OPTIONS[name]
