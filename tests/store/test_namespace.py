"""Equal facts give equal namespaces; every difference gives another; huge weights take no time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import InternalError, RequirementError
from warmtier.store.namespace import REQUIRED_FACTS, Fact, namespace_of, weight_files, weights_digest

BASE: dict[str, Fact] = dict.fromkeys(REQUIRED_FACTS, "x")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def typed(value: Fact) -> object:
    """Return ``value`` such that == compares facts: 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {name: typed(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [typed(inner) for inner in value]
    return (type(value), repr(value))


@given(values, values)
def test_differs_exactly_when_a_fact_differs(first: Fact, second: Fact) -> None:
    same = namespace_of({**BASE, "layout": first}) == namespace_of({**BASE, "layout": second})
    assert same == (typed(first) == typed(second))


def test_the_order_of_facts_does_not_matter() -> None:
    facts: dict[str, Fact] = {**BASE, "parallel": {"tensor": 2, "pipeline": 1}}
    turned: dict[str, Fact] = dict(reversed({**facts, "parallel": {"pipeline": 1, "tensor": 2}}.items()))
    assert namespace_of(facts) == namespace_of(turned)
    assert len(namespace_of(facts)) == 16


def test_is_stable_across_processes_and_versions() -> None:
    """A changed encoding would silently empty every tier: then the format version must change too."""
    assert namespace_of(BASE).hex() == "b453741d15925ca3d0727781dedba263"


@pytest.mark.parametrize("name", REQUIRED_FACTS)
def test_every_required_fact_is_required_and_counts(name: str) -> None:
    with pytest.raises(InternalError, match=name):
        namespace_of({fact: value for fact, value in BASE.items() if fact != name})
    assert namespace_of({**BASE, name: "y"}) != namespace_of(BASE)


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(InternalError, match="cannot hold a object"):
        namespace_of({**BASE, "layout": object()})  # type: ignore[dict-item]


def make_weights(root: Path, sizes: tuple[int, ...] = (3 << 20, 70_000)) -> list[Path]:
    root.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (root / f"model-{number}.safetensors").write_bytes(bytes([number + 1]) * size)
    (root / "config.json").write_text("{}")
    return weight_files(root)


def test_weights_moved_or_touched_are_the_same_weights(tmp_path: Path) -> None:
    first, second = make_weights(tmp_path / "a"), make_weights(tmp_path / "b" / "c")
    assert [path.name for path in first] == ["model-0.safetensors", "model-1.safetensors"]
    assert weights_digest(first) == weights_digest(reversed(second))
    assert weights_digest(first, tmp_path / "a") == weights_digest(second, tmp_path / "b" / "c")


@pytest.mark.parametrize("change", ["header", "tail", "size", "name", "middle", "fewer"])
def test_other_weights_are_other_weights(tmp_path: Path, change: str) -> None:
    files = make_weights(tmp_path / "a")
    before = weights_digest(files)
    data = bytearray(files[0].read_bytes())
    match change:
        case "header":
            data[20] ^= 1
        case "tail":
            data[-1] ^= 1
        case "size":
            data += b"."
        case "middle":  # trained on: everything differs a little
            data[1 << 20 :: 512] = bytes(len(data[1 << 20 :: 512]))
    files[0].write_bytes(data)
    if change == "name":
        files[0] = files[0].rename(tmp_path / "a" / "other.safetensors")
    if change == "fewer":
        files.pop()
    assert weights_digest(files) != before


def test_unreadable_weights_are_a_requirement(tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match="cannot read the weights"):
        weights_digest([tmp_path / "gone.safetensors"])


def test_huge_weights_are_sampled(tmp_path: Path) -> None:
    """140 GB in 30 sparse files: the bytes read are bounded, so is the time."""
    for number in range(30):
        with (tmp_path / f"model-{number:02}.safetensors").open("wb") as file:
            file.truncate(140_000_000_000 // 30)
    read_before = os.times()
    started_s = time.perf_counter()
    weights_digest(weight_files(tmp_path))
    print(f"140 GB in {time.perf_counter() - started_s:.3f} s, {os.times().system - read_before.system:.3f} s system")
    assert all(path.stat().st_blocks == 0 for path in weight_files(tmp_path))
