"""Ceph's RADOS gateway, a real S3: one monitor, one OSD in memory or on disk, one gateway. Needs Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

from server_process import Daemon, ServerUnavailableError, await_condition, free_port, listens, make_certificate

ACCESS_KEY: Final = "AKID"
SECRET_KEY: Final = "SECRETKEY123"  # noqa: S105 - of a server that lives for one test run
REGION: Final = "us-east-1"
INSTALL: Final = "apt-get install -y --no-install-recommends radosgw ceph-mon ceph-osd ceph-common"

_CONFIG: Final = """\
[global]
fsid={fsid}
mon_initial_members=a
mon_host=[v2:127.0.0.1:{msgr2}/0,v1:127.0.0.1:{msgr1}]
public_addr=127.0.0.1
cluster_addr=127.0.0.1
ms_bind_ipv4=true
auth_cluster_required=cephx
auth_service_required=cephx
auth_client_required=cephx
auth_allow_insecure_global_id_reclaim=false
keyring={home}/keyring
mon_data={home}/mon
osd_data={home}/osd
run_dir={home}/run
admin_socket={home}/run/$cluster-$name.asok
log_file={home}/$name.log
osd_objectstore={objectstore}
osd_pool_default_size=1
osd_pool_default_min_size=1
mon_allow_pool_size_one=true
osd_pool_default_pg_num=4
osd_pool_default_pgp_num=4
osd_crush_chooseleaf_type=0
osd_memory_target=939524096
memstore_device_bytes={device_bytes}
bluestore_block_size={device_bytes}
bluestore_block_create=true
mon_data_avail_warn=2
mon_data_avail_crit=1
mon_warn_on_pool_no_redundancy=false
setuser_match_path=
rgw_max_chunk_size=4194304
rgw_put_obj_min_window_size=16777216
[client.rgw.a]
rgw_frontends=beast endpoint=127.0.0.1:{port} {tls}
rgw_thread_pool_size=16
rgw_enable_usage_log=false
rgw_enable_ops_log=false
"""


class CephServer:
    """A cluster of one machine below ``home``. ``gateway`` is the process that speaks S3."""

    def __init__(self, home: Path, *, objectstore: str = "memstore", device_bytes: int = 4 << 30) -> None:
        missing = [name for name in ("radosgw", "ceph-mon", "ceph-osd", "ceph") if shutil.which(name) is None]
        if missing:
            raise ServerUnavailableError(f"{', '.join(missing)} not installed: {INSTALL}")
        self.port, self.tls_port = free_port(), free_port()
        self._home = home
        self._config = home / "ceph.conf"
        for name in ("mon", "osd", "run"):
            (home / name).mkdir(parents=True)
        self.certificate, key = make_certificate(home)
        tls = f"ssl_endpoint=127.0.0.1:{self.tls_port} ssl_certificate={self.certificate} ssl_private_key={key}"
        self._config.write_text(
            _CONFIG.format(
                fsid=uuid.uuid4(),
                home=home,
                msgr1=free_port(),
                msgr2=free_port(),
                port=self.port,
                tls=tls,
                objectstore=objectstore,
                device_bytes=device_bytes,
            )
        )
        self._monitor = self._daemon("ceph-mon", "-i", "a")
        self._osd = self._daemon("ceph-osd", "-i", "0")
        self.gateway = self._daemon("radosgw", "-n", "client.rgw.a")

    @property
    def endpoint(self) -> str:
        """The URL of the S3 service."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL of an object tier in ``bucket``."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def tls_url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL of an object tier in ``bucket``, encrypted, without the certificate to trust."""
        return f"s3://{bucket}/{prefix}?endpoint=https://127.0.0.1:{self.tls_port}&region={REGION}"

    def start(self) -> None:
        """Start the cluster (about 15 seconds) and make the user. Raises ServerUnavailableError."""
        self._make_keys()
        self._monitor.start()
        self._run("ceph", "--connect-timeout", "20", "osd", "new", str(osd_id := uuid.uuid4()))
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", str(osd_id))
        self._osd.start()
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=localhost")
        self.start_gateway()
        self._run(
            "radosgw-admin", "user", "create", "--uid=t", "--display-name=t",
            f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}",
        )  # fmt: skip

    def start_gateway(self) -> None:
        """Start the gateway (again) and wait until it listens."""
        self.gateway.start()
        await_condition(lambda: listens(self.port) or not self.gateway.alive, 60, "the start of radosgw")
        if not self.gateway.alive:
            raise ServerUnavailableError(f"radosgw ended: {self.gateway.log_tail()}")

    def stop(self) -> None:
        """End all processes."""
        for daemon in (self.gateway, self._osd, self._monitor):
            daemon.stop()

    def _make_keys(self) -> None:
        home = self._home
        keyring, monmap = str(home / "keyring"), str(home / "monmap")
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        for name in ("client.admin", "osd.0", "client.rgw.a"):
            caps = [part for kind in ("mon", "osd", "mgr") for part in ("--cap", kind, "allow *")]
            self._run("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
        address = next(line for line in self._config.read_text().splitlines() if line.startswith("mon_host="))
        address = address.removeprefix("mon_host=").replace("/0", "").replace(" ", "")
        fsid = next(line for line in self._config.read_text().splitlines() if line.startswith("fsid="))
        self._run("monmaptool", "--create", "--fsid", fsid.removeprefix("fsid="), "--addv", "a", address, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)

    def _daemon(self, program: str, *arguments: str) -> Daemon:
        log = self._home / f"{program}.out"
        return Daemon([program, "-c", str(self._config), *arguments, "-f"], log)

    def _run(self, program: str, *arguments: str) -> None:
        environment = {**os.environ, "CEPH_CONF": str(self._config)}
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=90, env=environment)
        if done.returncode != 0:
            raise ServerUnavailableError(f"{program} {arguments[0]} failed: {done.stderr[-1000:]}")
