"""A real API server of Kubernetes on the loopback: etcd and kube-apiserver, without kubelets, schedulers or controllers.

``KUBEBUILDER_ASSETS`` names a folder with the programs ``etcd``, ``kube-apiserver`` and ``kubectl``, as controller-runtime's
``setup-envtest`` fetches them; no package registry that is used here has a current kube-apiserver. It decides what a cluster
decides when something is applied: schemas, defaults, values that do not go with each other, who owns a field (server-side
apply), and what Pod Security Standards forbid.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.harness import free_ports

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
_LOOK_S = 0.05


def programs() -> Path:
    """The folder of the programs; skips where there is none."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nowhere"))
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if missing:
        pytest.skip(f"KUBEBUILDER_ASSETS names no folder with {', '.join(missing)}: setup-envtest fetches one")
    return folder


class ApiServer:
    def __init__(self, folder: Path, assets: Path) -> None:
        self.folder, self._assets = folder, assets
        self.kubeconfig = folder / "kubeconfig"

    @property
    def version(self) -> tuple[int, int]:
        found = json.loads(self.kubectl("get", "--raw=/version").stdout)
        return int(found["major"]), int(found["minor"].rstrip("+"))

    def kubectl(self, *arguments: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self._assets / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        environ = {**os.environ, "HOME": str(self.folder)}  # where kubectl keeps what it has discovered
        done = subprocess.run(command, input=given, capture_output=True, text=True, env=environ)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done

    def apply(self, documents: Sequence[Any], *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Server-side apply; fields that nobody knows are errors."""
        given = yaml.safe_dump_all(documents)
        strict = ("--server-side", "--field-manager=tests", "--validate=strict")
        return self.kubectl("apply", *strict, *arguments, "-f", "-", given=given, check=check)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", "-o", "json", *arguments).stdout)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """An empty cluster in *folder*. Skips where its programs are not to be had."""
    assets = programs()
    etcd_port, peer_port, port = free_ports(3)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "accounts.key").write_bytes(pem)
    (folder / "tokens").write_text('secret,admin,1,"system:masters"\n')
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            _process(
                folder / "etcd.log",
                [
                    str(assets / "etcd"),
                    f"--data-dir={folder / 'etcd'}",
                    f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
                    f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
                    "--unsafe-no-fsync",
                ],
            )
        )
        process = stack.enter_context(
            _process(
                folder / "kube-apiserver.log",
                [
                    str(assets / "kube-apiserver"),
                    f"--etcd-servers=http://127.0.0.1:{etcd_port}",
                    "--bind-address=127.0.0.1",
                    "--advertise-address=127.0.0.1",
                    f"--secure-port={port}",
                    f"--cert-dir={folder / 'certificates'}",
                    f"--token-auth-file={folder / 'tokens'}",
                    "--authorization-mode=RBAC",
                    "--service-cluster-ip-range=10.0.0.0/24",
                    "--service-account-issuer=https://127.0.0.1/",
                    f"--service-account-key-file={folder / 'accounts.key'}",
                    f"--service-account-signing-key-file={folder / 'accounts.key'}",
                    # A controller would make each namespace's account, and there is none.
                    "--disable-admission-plugins=ServiceAccount",
                ],
            )
        )
        server = ApiServer(folder, assets)
        server.kubeconfig.write_text(_kubeconfig(port))
        while server.kubectl("get", "--raw=/readyz", check=False).returncode != 0:
            assert process.poll() is None, (folder / "kube-apiserver.log").read_text()[-4000:]
            time.sleep(_LOOK_S)
        yield server


def _kubeconfig(port: int) -> str:
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return yaml.safe_dump({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        "current-context": "here",
    })  # fmt: skip


@contextlib.contextmanager
def _process(log: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
