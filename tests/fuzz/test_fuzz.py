"""A few hundred unusual inputs of every kind, the same in every run. `make fuzz` tries 20,000."""

from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.oracle import Case, judge


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    """Disable the type checker of the tests, which would refuse wrong types before the package does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", KINDS)
def test_no_input_fails(name: str, tmp_path: Path) -> None:
    found = [judge(KINDS[name], Case(name, number), tmp_path) for number in range(KINDS[name].few)]
    failed = [f"{o.case} {o.where}: {o.what}\n    {o.shown}" for o in found if o.verdict == "failed"]
    assert not failed, "python -m tests.fuzz --replay CASE shows one of them:\n" + "\n".join(failed)
    assert {o.verdict for o in found} <= {"ok", "refused"}
