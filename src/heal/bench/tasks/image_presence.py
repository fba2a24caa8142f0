"""Which images of a benchmark are there, known before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heal.bench.tasks.base import File, Picture, Sample
from heal.bench.tasks.image_files import Named
from heal.errors import DataError

SHOWN = 3


@dataclass(frozen=True)
class Presence:
    """The image files of some samples. Pictures that are drawn when asked for are always there."""

    total: int
    missing: tuple[Path, ...]

    @property
    def there(self) -> int:
        return self.total - len(self.missing)

    def words(self) -> str:
        shown = ", ".join(map(str, self.missing[:SHOWN])) + (", …" if len(self.missing) > SHOWN else "")
        return f"{len(self.missing)} of {self.total} images are missing: {shown}"


def lost(picture: Picture) -> Path | None:
    """Where the file of a picture should be and is not; None if it is there."""
    if not isinstance(picture, (Named, File)):
        return None
    try:
        path = picture.path
        return None if path.is_file() else path
    except OSError:  # a name too long for any file, a folder that may not be looked into
        return Path(picture.name) if isinstance(picture, Named) else picture.path


def presence(samples: Sequence[Sample]) -> Presence:
    pictures = dict.fromkeys(s.picture for s in samples if isinstance(s.picture, (Named, File)))
    missing = (lost(picture) for picture in pictures)
    return Presence(len(pictures), tuple(path for path in missing if path is not None))


def with_images(samples: Mapping[str, Sequence[Sample]], skip_missing: bool = False) -> dict[str, tuple[Sample, ...]]:
    """The samples whose images are there. That some are not is an error, unless they may be skipped."""
    found: dict[str, tuple[Sample, ...]] = {}
    for name, own in samples.items():
        seen = presence(own)
        if seen.missing and not (skip_missing and seen.there):
            skip = ", or go on without them (--skip-missing; in Python: skip_missing=True)" if seen.there else ""
            raise DataError(
                f"{name}: {seen.words()}. Put them there, or give their folder with the option images={skip}"
            )
        found[name] = tuple(s for s in own if lost(s.picture) is None) if seen.missing else tuple(own)
    return found
