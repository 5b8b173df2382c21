"""`warmtier serve` and `warmtier config`: our flags are taken, all others pass through in their order."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.cli.app import run
from warmtier.cli.serve import split_arguments

OWN = ["--host-tier", "4GiB"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["serve", *arguments, "--print-command"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_vllms_flags_pass_through_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = [
        "--port",
        "8000",
        "MODEL",
        "-tp",
        "2",
        "--host",
        "::1",
        "-O.mode=3",
        "--x_y=1",
        "--quiet",
        "--format",
        "a",
    ]
    words = printed(capsys, *theirs[:3], *OWN, *theirs[3:])
    assert words[: len(theirs) + 2] == ["vllm", "serve", *theirs]
    assert "--host-tier" not in words


@pytest.mark.parametrize("own", [["--host-tier=4GiB"], ["--host_tier", "4GiB"], ["--host_tier=4GiB"]])
def test_our_flags_have_both_spellings(capsys: pytest.CaptureFixture[str], own: list[str]) -> None:
    assert printed(capsys, "MODEL", *own) == printed(capsys, "MODEL", *OWN)


@given(st.lists(st.sampled_from(["M", "--a", "--a=b", "-x", "5", "--host-tier=1GiB", "--debug", "--print-command"])))
def test_splitting_loses_and_reorders_nothing(arguments: list[str]) -> None:
    own, rest = split_arguments(arguments)
    ours = ("--host-tier", "--debug", "--print-command")
    assert own == [a for a in arguments if a.startswith(ours)]
    assert rest == [a for a in arguments if not a.startswith(ours)]


def test_after_two_dashes_nothing_is_ours() -> None:
    assert split_arguments(["--host-tier", "1GiB", "--", "--debug"]) == (["--host-tier", "1GiB"], ["--", "--debug"])


def test_a_flag_without_its_value_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "MODEL", "--host-tier"]) == 2
    assert "requires an argument" in capsys.readouterr().err


def test_the_file_tier_names_a_directory_and_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    words = printed(capsys, "MODEL", *OWN, "--file-tier", "/mnt/a:b:20GiB")
    extra = json.loads(words[words.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    assert extra["warmtier"]["file"] == {"directory": "/mnt/a:b", "capacity": "20GiB"}
    for wrong in ("/mnt/kv", ":5GiB", "20GiB"):
        assert run(["serve", "MODEL", *OWN, "--file-tier", wrong, "--print-command"]) == 2


def test_a_users_own_connector_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "MODEL", *OWN, "--kv_transfer_config={}"]) == 2
    text = capsys.readouterr().err
    assert "why: an engine has one KV connector" in text
    assert "fix: remove --kv_transfer_config" in text


def test_printing_the_command_imports_neither_vllm_nor_torch(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    printed(capsys, "MODEL", *OWN)
    new = {name.split(".")[0] for name in set(sys.modules) - before}
    assert not new & {"vllm", "torch", "transformers"}


def test_serving_without_vllm_is_exit_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "vllm" else find(name))
    assert run(["serve", "MODEL", *OWN]) == 3
    assert "vLLM is not installed" in capsys.readouterr().err


def test_render_prints_the_json_that_serve_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kv.yaml"
    file.write_text("host:\n  capacity: 4GiB\nvllm:\n  blocks_per_chunk: 2\n")
    assert run(["config", "render", str(file)]) == 0
    first, _, command = capsys.readouterr().out.partition("\n\n")
    flag, value = shlex.split(first)
    assert flag == "--kv-transfer-config"
    assert shlex.split(command)[-1] == value
    assert run(["config", "render", str(file), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kv_transfer_config"] == json.loads(value)
    assert document["schema_version"] == 1
    assert document["kind"] == "config.render"


def test_validate_names_the_source_of_each_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kv.yaml"
    file.write_text("host:\n  capacity: 4GiB\n")
    assert run(["config", "validate", str(file), "--format", "json", "--output", str(tmp_path / "out.json")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "wrote" in captured.err
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["given"] == [{"key": "host.capacity", "value": "4GiB", "source": f"{file}:2:3"}]


def test_the_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["host"]
