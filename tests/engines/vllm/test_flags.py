"""What warmtier understands of vLLM's command line, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmtier.core.errors import UsageError
from warmtier.engines.vllm.flags import flag_name, last_value, read_flags, refuse_owned


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kv-transfer-config", "{}"],
        ["--kv-transfer-config={}"],
        ["--kv_transfer_config", "{}"],
        ["--kv_transfer_config={}"],
        ["--kv-transfer-config.kv_role", "kv_both"],
        ["--kv_transfer_config.kv_role=kv_both"],
        ["--kv-t", "{}"],
        ["--kv-offloading-size", "4"],
        ["--kv_offloading_size=4"],
        ["--kv-offloading-backend", "native"],
        ["--kv-offload", "native"],
        ["--no-enable-prefix-caching"],
        ["--no_enable_prefix_caching"],
    ],
)
def test_what_warmtier_owns_is_refused_with_a_reason(arguments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_owned(read_flags(["MODEL", "--port", "8000", *arguments]))
    assert arguments[0].split("=")[0] in caught.value.message
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("name", ["kv_offloading_size", "kv-transfer-config"])
@pytest.mark.parametrize("joined", [True, False])
def test_the_file_of_vllms_config_flag_is_read_too(tmp_path: Path, name: str, joined: bool) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(f"port: 8000\n{name}: 4\n")
    arguments = [f"--config={file}"] if joined else ["--config", str(file)]
    with pytest.raises(UsageError) as caught:
        refuse_owned(read_flags(arguments))
    assert f"{file}: {name}" in caught.value.message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kv-cache-dtype", "fp8"],
        ["--kv-events-config", "{}"],
        ["--enable-prefix-caching"],
        ["--config", "/absent.yaml"],
        ["--unknown-flag"],
        ["-tp", "2"],
    ],
)
def test_everything_else_is_left_to_vllm(arguments: list[str]) -> None:
    refuse_owned(read_flags(arguments))


def test_values_are_read_in_every_spelling() -> None:
    flags = read_flags(["M", "--block_size", "32", "--dtype=float32", "--enforce-eager", "--block-size=64"])
    assert last_value(flags, "--block-size") == "64"
    assert last_value(flags, "--dtype") == "float32"
    assert last_value(flags, "--enforce-eager") is None
    assert flag_name("--a_b.c_d=e_f") == "--a-b"
