import pytest

from heal.studies import answered, verdicts


@pytest.fixture
def few_are_enough(monkeypatch):
    """Verdicts on hand-made answers about two or three images."""
    for module in (answered, verdicts):
        monkeypatch.setattr(module, "FEWEST", 0)
