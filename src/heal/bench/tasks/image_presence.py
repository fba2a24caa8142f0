"""Check that the images of a benchmark exist before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heal.bench.tasks.base import File, ImageSource, Sample
from heal.bench.tasks.image_files import NamedImage
from heal.errors import DataError

SHOWN = 3


@dataclass(frozen=True)
class Presence:
    """Existing and missing image files of some samples. Images that are drawn on demand always exist."""

    total: int
    missing: tuple[Path, ...]

    @property
    def there(self) -> int:
        return self.total - len(self.missing)

    def description(self) -> str:
        shown = ", ".join(map(str, self.missing[:SHOWN])) + (", …" if len(self.missing) > SHOWN else "")
        return f"{len(self.missing)} of {self.total} images are missing: {shown}"


def missing_file(source: ImageSource) -> Path | None:
    """The expected path of a missing image file; None if it exists."""
    if not isinstance(source, (NamedImage, File)):
        return None
    try:
        path = source.path
        return None if path.is_file() else path
    except OSError:  # the name is too long, or the folder is not readable
        return Path(source.name) if isinstance(source, NamedImage) else source.path


def presence(samples: Sequence[Sample]) -> Presence:
    sources = dict.fromkeys(s.image_source for s in samples if isinstance(s.image_source, (NamedImage, File)))
    missing = (missing_file(source) for source in sources)
    return Presence(len(sources), tuple(path for path in missing if path is not None))


def samples_with_images(
    samples: Mapping[str, Sequence[Sample]], skip_missing: bool = False
) -> dict[str, tuple[Sample, ...]]:
    """Keep the samples whose images exist. Missing images are an error unless `skip_missing`."""
    found: dict[str, tuple[Sample, ...]] = {}
    for name, own in samples.items():
        seen = presence(own)
        if seen.missing and not (skip_missing and seen.there):
            skip = ", or skip these samples (--skip-missing; in Python: skip_missing=True)" if seen.there else ""
            raise DataError(
                f"{name}: {seen.description()}. Add them, or give their folder with the option images={skip}"
            )
        found[name] = tuple(s for s in own if missing_file(s.image_source) is None) if seen.missing else tuple(own)
    return found
