"""The grammar of the command line: exit codes, the form of errors, what is imported when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from warmtier.cli import app as cli
from warmtier.cli.errors import describe
from warmtier.core.errors import CheckFailedError, RequirementError, TargetError, UsageError

HEAVY = ("torch", "vllm", "transformers", "numpy", "pydantic", "yaml", "aiohttp", "rich", "jinja2", "matplotlib")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(f"import sys; sys.argv = ['warmtier', *{list(arguments)!r}]; from warmtier.cli import main; main()")


def test_help_lists_every_command_and_imports_none() -> None:
    code = f"""
import sys
from warmtier.cli.app import run
code = run(["--help"])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
ours = [name.removeprefix("warmtier.cli.") for name in sys.modules if name.startswith("warmtier.cli.")]
loaded += [name for name in ours if name not in ("app", "errors")]
print("LOADED", loaded, "CODE", code, "COUNT", len(sys.modules) < 600)
"""
    result = python(code)
    assert "LOADED [] CODE 0 COUNT True" in result.stdout, result.stdout + result.stderr
    for name in ("serve", "demo", "config"):
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    if name not in [command for command in cli.COMMANDS if cli.is_installed(command)]:
        assert result.returncode == 2
        return
    assert result.returncode == 0, result.stderr
    assert f"Usage: warmtier {name}" in result.stdout


def test_version() -> None:
    result = run("--version")
    assert result.stdout.startswith("warmtier ")
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "what", "where"),
    [
        (["frobnicate"], "No such command 'frobnicate'", "warmtier"),
        (["--frobnicate"], "No such option: --frobnicate", "warmtier"),
        (["config", "render", "--frob"], "No such option: --frob", "warmtier config render"),
        (["config", "validate", "--format", "xml"], "xml", "warmtier config validate"),
        ([], "no command given", "warmtier"),
        (["config"], "no command given", "warmtier config"),
    ],
)
def test_usage_errors_have_the_one_form_and_exit_2(arguments: list[str], what: str, where: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    first, second, third = result.stderr.splitlines()[:3]
    assert first.startswith("error: ")
    assert what in first
    assert second == f"  where: {where}"
    assert third == f"  fix: see `{where} --help`"


def test_errors_of_configuration_carry_no_traceback_unless_asked() -> None:
    quiet = run("config", "validate", "--host-tier", "5")
    assert quiet.returncode == 2
    assert quiet.stderr.startswith("error: --host-tier host.capacity: '5' is not a size")
    assert "Traceback" not in quiet.stderr
    loud = run("--debug", "config", "validate", "--host-tier", "5")
    assert "Traceback" in loud.stderr
    assert loud.returncode == 2
    also_loud = run("config", "validate", "--host-tier", "5", "--debug")
    assert "Traceback" in also_loud.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailedError("x"), 1), (UsageError("x"), 2), (RequirementError("x"), 3), (TargetError("x"), 4),
        (RuntimeError("x"), 1), (PermissionError(13, "Permission denied", "/x"), 3),
    ],
)  # fmt: skip
def test_exit_codes(error: Exception, code: int) -> None:
    assert describe(error).exit_code == code


def test_an_unforeseen_error_says_so() -> None:
    text = describe(RuntimeError("boom")).text()
    assert text.splitlines() == [
        "error: RuntimeError: boom",
        "  why: an error that warmtier did not foresee",
        "  fix: run again with --debug for the traceback, and report it",
    ]


def test_interruption_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from warmtier.cli import config

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "load_config", interrupt)
    assert cli.run(["config", "validate"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys; sys.argv=['warmtier','config','schema']; from warmtier.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
        process.wait(timeout=60)
    assert "Traceback" not in errors
    assert "error" not in errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [("warmtier conf", "config"), ("warmtier config re", "render"), ("warmtier serve --ho", "--host-tier")],
)
def test_shells_complete_commands_and_flags(words: str, expected: str) -> None:
    count = len(words.split()) - 1
    code = (
        "import os, sys; os.environ.update(_WARMTIER_COMPLETE='complete_bash', "
        f"COMP_WORDS={words!r}, COMP_CWORD={str(count)!r}); sys.argv = ['warmtier'];"
        "from warmtier.cli import main; main()"
    )
    assert expected in python(code).stdout.split()
