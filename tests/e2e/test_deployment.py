"""The federation of ``docs/deployment.md``: TLS, keys, nodes with their own data."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flfa_app.config import RunConfig
from flfa_app.launch.demo import launch_on_nodes, node_images
from flfa_app.launch.deployment import CONNECTION, Deployment, local_deployment
from flfa_app.launch.processes import find_processes, free_port, run_flwr
from tests.federation import ROOT, default_keys, metrics, run_app
from tests.system_packages import find_program

pytestmark = [pytest.mark.e2e, pytest.mark.needs("openssl", "ssh-keygen")]

NODES = 3
KEYS: dict[str, Any] = {
    "num-server-rounds": 2,
    "local-epochs": 1,
    "fraction-train": 1.0,
    "min-available-nodes": NODES,
}


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    images = node_images(RunConfig.parse(default_keys() | KEYS), NODES)
    with local_deployment(ROOT, images) as started:
        yield started
    assert find_processes(started.home) == set()
    assert all(process.poll() is not None for process in started.processes)
    assert not started.home.exists()


@pytest.fixture(scope="module")
def results(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one run, before further nodes join."""
    options = argparse.Namespace(
        nodes=NODES,
        workers=1,
        gpus_per_client=0.0,
        output_dir=tmp_path_factory.mktemp("results"),
        verbose=True,
    )
    return launch_on_nodes(deployment, options, KEYS)


def rejected_node(deployment: Deployment, name: str, *options: str) -> tuple[int, str]:
    """Start a SuperNode that is refused; return its exit status and its log."""
    log = deployment.home / f"{name}.log"
    command = ["flower-supernode", "--superlink", deployment.address]
    command += ["--port", str(free_port()), "--max-retries", "1"]
    command += ["--node-config", "partition-id=9 num-partitions=10", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=deployment.environment,
            cwd=deployment.home,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        status = process.wait(timeout=90)
    finally:
        process.kill()
    return status, log.read_text()


def online_nodes(deployment: Deployment) -> int:
    """The number of nodes that the SuperLink can send messages to."""
    listed = run_flwr(deployment.environment, "supernode", "list", CONNECTION)
    return sum(node["status"] == "online" for node in listed["nodes"])


def test_the_result_is_the_simulations(results: Path, tmp_path: Path) -> None:
    """Bit for bit: the same partition, seed and order of summation."""
    simulated = run_app(tmp_path, KEYS, nodes=NODES)
    assert metrics(results) == metrics(simulated)
    model = (simulated / "model.safetensors").read_bytes()
    assert (results / "model.safetensors").read_bytes() == model
    for row in metrics(results):
        assert row["participants"] == list(range(NODES))


def get(connection: http.client.HTTPConnection) -> int:
    with closing(connection):
        connection.request("GET", "/health")
        return connection.getresponse().status


def test_plain_http_is_refused(deployment: Deployment) -> None:
    plain = http.client.HTTPConnection(deployment.address, timeout=20)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        get(plain)


def test_the_certificate_is_not_trusted_without_our_authority(
    deployment: Deployment,
) -> None:
    tls = http.client.HTTPSConnection(deployment.address, timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        get(tls)


def test_an_unregistered_key_is_refused(deployment: Deployment, results: Path) -> None:
    """Flower's exit code is in the log; the process itself exits with 1."""
    ca, key = deployment.certificates / "ca.crt", deployment.create_key("stranger")
    options = ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    status, log = rejected_node(deployment, "stranger", *options)
    assert (status, re.findall(r"Exit Code: (\d+)", log)) == (1, ["305"]), log
    assert online_nodes(deployment) == NODES


def test_without_a_key_a_node_is_refused(deployment: Deployment, results: Path) -> None:
    ca = deployment.certificates / "ca.crt"
    status, log = rejected_node(deployment, "keyless", "--root-certificates", str(ca))
    assert (status, re.findall(r"Exit Code: (\d+)", log)) == (1, ["305"]), log


def test_without_tls_a_node_cannot_join(deployment: Deployment, results: Path) -> None:
    status, log = rejected_node(deployment, "insecure", "--insecure")
    assert (status, re.findall(r"Exit Code: (\d+)", log)) == (1, ["305"]), log
    key = str(deployment.home / "node-0")  # registered, but useless without TLS
    options = ["--insecure", "--auth-supernode-private-key", key]
    status, log = rejected_node(deployment, "insecure-key", *options)
    assert (status, re.findall(r"Exit Code: (\d+)", log)) == (1, ["303"]), log
    assert online_nodes(deployment) == NODES


def join_node(deployment: Deployment, name: str, address: str = "") -> tuple[Any, str]:
    """Start a further node and wait until it is online; return its process and id."""
    key = deployment.create_key(name)
    node_id = deployment.register(key)
    config = "partition-id=3 num-partitions=4"
    process = deployment.start_node(key, config, address)
    deadline = time.monotonic() + 60
    while online_nodes(deployment) <= NODES and time.monotonic() < deadline:
        time.sleep(1)
    assert online_nodes(deployment) == NODES + 1, deployment.log_tails()
    return process, node_id


def test_an_unregistered_node_is_refused_from_then_on(
    deployment: Deployment, results: Path
) -> None:
    process, node_id = join_node(deployment, "guest")
    run_flwr(deployment.environment, "supernode", "unregister", node_id, CONNECTION)
    assert process.wait(timeout=60) == 0  # so the systemd unit needs Restart=always
    assert online_nodes(deployment) == NODES


@pytest.fixture
def proxy(deployment: Deployment) -> Iterator[str]:
    """nginx in front of the SuperLink: ``deploy/nginx.conf`` with other ports."""
    home, port = deployment.home, free_port()
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    for old, new in {
        "/etc/flfa": str(deployment.certificates),
        "127.0.0.1:8000": deployment.address,
        "listen [::]:8443 ssl;": "",
        "listen 8443": f"listen 127.0.0.1:{port}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {home}/nginx-{kind};\n" for kind in kinds)
    file = home / "nginx.conf"
    file.write_text(
        f"daemon off; master_process off; pid {home}/nginx.pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )
    with (home / "nginx.log").open("wb") as log:
        process = subprocess.Popen(
            [str(find_program("nginx")), "-c", file, "-e", "stderr"],
            stdout=log,
            stderr=log,
        )
    try:
        time.sleep(1)
        assert process.poll() is None, (home / "nginx.log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def post_status(deployment: Deployment, address: str, path: str) -> int:
    """The HTTP status of an empty request, as ``flwr list`` would send it."""
    context = ssl.create_default_context(cafile=deployment.certificates / "ca.crt")
    tls = http.client.HTTPSConnection(address, timeout=20, context=context)
    with closing(tls):
        tls.putrequest("POST", path, skip_accept_encoding=True)
        tls.putheader("Content-Type", "application/protobuf")
        tls.putheader("Content-Length", "0")
        tls.endheaders()
        return tls.getresponse().status


@pytest.mark.needs("nginx")
def test_behind_nginx_nodes_reach_the_fleet_and_nothing_else(
    deployment: Deployment, results: Path, proxy: str
) -> None:
    unprotected = ("/v1/control/list-runs", "/v1/runtime/acquire-task")
    for path in unprotected:  # Flower does not authenticate the caller
        assert post_status(deployment, deployment.address, path) == 200
    for path in (
        *unprotected,
        "/v1/control/start-run",
        "/docs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "//v1//control/list-runs",
        "/v1/control/list-runs?/v1/fleet/get-run",
        "/v1/control/list-runs#/../../fleet/get-run",
        "/v1/control%2flist-runs",
    ):
        assert post_status(deployment, proxy, path) in (400, 404), path
    assert (
        post_status(deployment, proxy, "/v1/fleet/get-run") == 401
    )  # a node must sign
    process, _ = join_node(deployment, "behind-nginx", proxy)
    process.terminate()
    process.wait(timeout=30)


def test_ctrl_c_stops_the_demo_and_removes_everything(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flfa_app.deploy_demo", "--nodes", "2"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The process that started the tests may ignore Ctrl-C; children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        output = []
        for line in process.stdout:
            output.append(line)
            if line.startswith("Results: "):
                break
        (home,) = tmp_path.glob("flfa-*")
        # The SuperLink, its helper and the ServerApp; two SuperNodes and their helpers.
        assert len(find_processes(home)) > 6, "".join(output)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=90)
    finally:
        process.terminate()
    assert process.returncode == 130
    assert find_processes(home) == set()
    assert not home.exists()
