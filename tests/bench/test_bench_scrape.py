"""Absent series are None, never 0."""

from __future__ import annotations

from warmtier.bench.scrape import growth, parse

PAGE = """# TYPE a counter
a_total{engine="0",source="host"} 5
a_total{engine="1",source="host"} 7
a_total{engine="0",source="device"} 1
# TYPE b gauge
b 2.5
"""


def test_samples_are_summed_over_the_labels_that_are_not_named() -> None:
    page = parse(PAGE)
    assert page.total("a_total") == 13
    assert page.total("a_total", source="host") == 12
    assert page.total("a_total", source="host", engine="1") == 7
    assert page.total("b") == 2.5
    assert page.by_label("a_total", "source") == {"host": 12, "device": 1}


def test_what_is_absent_is_none() -> None:
    page = parse(PAGE)
    assert page.total("c_total") is None
    assert page.total("a_total", source="disk") is None
    assert page.by_label("c_total", "source") == {}


def test_growth_counts_a_new_series_from_zero_and_an_absent_one_not_at_all() -> None:
    before, after = parse(""), parse(PAGE)
    assert growth(before, after, "a_total", source="host") == 12
    assert growth(after, after, "a_total") == 0
    assert growth(after, before, "a_total") is None
