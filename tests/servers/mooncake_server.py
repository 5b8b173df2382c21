"""Mooncake Store: a master, and a process that lends it memory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from server_process import Daemon, ServerUnavailableError, await_condition, free_port, listens

_OWNER = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("ready" if code == 0 else f"failed {code}", flush=True)
while code == 0:
    time.sleep(1)
"""


class MooncakeServer:
    """A master at ``port`` and an owner of ``segment_bytes``. Either can be killed and started again."""

    def __init__(
        self, home: Path, *, segment_bytes: int = 256 << 20, lease_s: float = 2.0, watermark: float = 0.9
    ) -> None:
        master = shutil.which("mooncake_master") or shutil.which(
            "mooncake_master", path=str(Path(sys.executable).parent)
        )
        if master is None or importlib.util.find_spec("mooncake") is None:
            raise ServerUnavailableError("Mooncake is not installed: pip install mooncake-transfer-engine-non-cuda")
        probe = subprocess.run([sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True)
        if probe.returncode != 0:
            raise ServerUnavailableError(
                "Mooncake does not load (apt-get install -y --no-install-recommends libibverbs1): "
                + probe.stderr.strip().splitlines()[-1]
            )
        self.port = free_port()
        self._home = home
        quiet = {**os.environ, "GLOG_minloglevel": "2"}
        self.master = Daemon(
            [
                master, "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
                f"--metrics_port={free_port()}", "--enable_http_metadata_server=false", "--logtostderr=1",
                f"--default_kv_lease_ttl={round(lease_s * 1000)}", "--client_ttl=5",
                f"--eviction_high_watermark_ratio={watermark}",
            ],
            home / "master.out",
            environment=quiet,
        )  # fmt: skip
        self.owner = Daemon(
            [sys.executable, "-c", _OWNER, f"127.0.0.1:{self.port}", str(segment_bytes)],
            home / "owner.out",
            environment=quiet,
        )

    @property
    def url(self) -> str:
        """The URL of a shared tier on it."""
        return f"mooncake://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start both and wait until memory is lent."""
        self.start_master()
        self.start_owner()

    def start_master(self) -> None:
        """Start the master (again)."""
        self.master.start()
        await_condition(lambda: listens(self.port) or not self.master.alive, 20, "the start of mooncake_master")
        if not self.master.alive:
            raise ServerUnavailableError(f"mooncake_master ended: {self.master.log_tail()}")

    def start_owner(self) -> None:
        """Start the process that lends memory (again)."""
        log = self._home / "owner.out"
        log.unlink(missing_ok=True)
        self.owner.start()
        await_condition(lambda: b"ready" in log.read_bytes() or not self.owner.alive, 30, "lending memory to Mooncake")
        if not self.owner.alive:
            raise ServerUnavailableError(f"the owner of memory ended: {self.owner.log_tail()}")

    def stop(self) -> None:
        """End both."""
        self.owner.stop()
        self.master.stop()
