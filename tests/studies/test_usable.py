"""Methods that do not suit a model are left out of an evaluation, with the reason."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from heal import VLM
from heal.errors import ConfigError, ImageError
from heal.methods import VCD, Guard, Method
from heal.studies.parts import Evaluated, Evaluation
from heal.studies.running import StudyRunner, model_facts
from heal.studies.setup import Setup
from heal.studies.usable import usable


@dataclass(frozen=True)
class Broken(Method):
    name: ClassVar[str] = "broken"

    def runtime(self, layout: Any, trace: bool) -> Any:
        raise ImageError("only this image is wrong")


@pytest.fixture(scope="module")
def vlm():
    return VLM.random()


def test_methods_that_the_model_cannot_use(vlm):
    found, refused = usable(vlm, {"plain": None, "vcd": VCD(), "guard": Guard(), "broken": Broken()})
    assert list(found) == ["plain", "vcd", "broken"]
    assert "detector" in refused["guard"]


def test_an_evaluation_leaves_them_out(vlm, tmp_path):
    setup = Setup(samples=1, max_new_tokens=3, batch_size=2)
    runner = StudyRunner(vlm, tmp_path)
    methods = {"plain": None, "guard": Guard()}
    part = Evaluation("answers", setup.tasks("chair"), methods, setup.settings, leave_out=True)
    for _ in range(2):  # the second time, everything is there
        found = runner.measured([part], model_facts(vlm))["answers"]
        assert isinstance(found, Evaluated)
        assert list(found.left_out) == ["guard"]
        assert [row.method for row in found.summary.rows] == ["plain"]
    strict = Evaluation("answers", setup.tasks("chair"), methods, setup.settings)
    with pytest.raises(ConfigError, match="detector"):
        StudyRunner(vlm, tmp_path / "other").measured([strict], model_facts(vlm))
