"""The covering design covers, and differs from law to law."""

import pytest

from tests.covering import chosen


@pytest.mark.parametrize("counts", [(15, 8), (8, 15), (3, 3), (16, 11), (2, 7)])
@pytest.mark.parametrize("shift", [0, 1, 5, 123456789])
def test_every_row_and_every_column_is_covered(counts: tuple[int, int], shift: int) -> None:
    rows, columns = counts
    pairs = [(i, j) for i in range(rows) for j in range(columns) if chosen(i, j, counts, shift)]
    assert len(pairs) == max(counts)
    assert {i for i, _ in pairs} == set(range(rows))
    assert {j for _, j in pairs} == set(range(columns))


def test_other_laws_take_other_pairs() -> None:
    taken = {(i, j) for shift in range(8) for i in range(15) for j in range(8) if chosen(i, j, (15, 8), shift)}
    assert len(taken) == 15 * 8


def test_marks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\nfrom tests.covering import mark_rest\n"
        "def pytest_configure(config): config.addinivalue_line('markers', 'matrix: x')\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items): mark_rest(items)\n"
    )
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.parametrize('name', list('abcd'))\n"
        "@pytest.mark.parametrize('method', list('xyz'))\n"
        "def test_law(name, method): pass\n"
        "@pytest.mark.parametrize(('name', 'method'), [('a', 'x'), ('b', 'y'), ('b', 'z')])\n"
        "def test_pairs(name, method): pass\n"
        "@pytest.mark.parametrize('name', list('abcd'))\n"
        "def test_every_architecture(name): pass\n"
    )
    pytester.runpytest("-m", "not matrix").assert_outcomes(passed=4 + 3 + 4, deselected=8)
    pytester.runpytest().assert_outcomes(passed=12 + 3 + 4)
