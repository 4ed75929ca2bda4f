"""The files of ``deploy/`` and the guide agree with the installed Flower."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.routers.runtime.router import router as runtime_router
from flwr.superlink.routers.control import router as control_router
from flwr.superlink.routers.fleet.router import router as fleet_router

from tests.federation import ROOT

DEPLOY = ROOT / "deploy"
PROGRAMS = ("flower-superlink", "flower-supernode")
GUIDES = [
    *(DEPLOY / "systemd").glob("*.service"),
    DEPLOY / "compose.yaml",
    ROOT / "docs" / "deployment.md",
]


def paths(router) -> set[str]:
    return {route.path for route in router.routes}


def is_forwarded(path: str) -> bool:
    """Whether ``deploy/nginx.conf`` forwards a path to the SuperLink."""
    (pattern,) = re.findall(r"location ~ (\S+) \{", (DEPLOY / "nginx.conf").read_text())
    return re.search(pattern, path) is not None


def test_nginx_forwards_all_fleet_paths() -> None:
    fleet = paths(fleet_router)
    assert len(fleet) >= 12
    assert all(map(is_forwarded, fleet))


def test_nginx_forwards_no_other_path() -> None:
    others = paths(control_router) | paths(runtime_router)
    assert {"/v1/control/start-run", "/v1/runtime/acquire-task"} <= others
    for path in (*others, "/docs", "/openapi.json", "/v1/fleet/../control/start-run"):
        assert not is_forwarded(path)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Flower's programs that a text starts, each with its options."""
    joined = re.sub(r"\\\n", " ", text)
    # In the compose file a command is a list, or continues in indented lines.
    joined = re.sub(r"\n\s+(?:- )?(?=--)", " ", joined)
    found = []
    for line in joined.splitlines():
        for program in PROGRAMS:
            _, found_program, rest = line.partition(f"{program} ")
            if found_program:
                found.append((program, re.findall(r"(?<![\w-])--[a-z-]+", rest)))
    return found


@pytest.fixture(scope="module")
def flower_options() -> dict[str, set[str]]:
    """The options in the help text of each program."""
    options = {}
    for program in PROGRAMS:
        command = [Path(sys.executable).parent / program, "--help"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        )
        options[program] = set(re.findall(r"--[a-z][a-z-]+", done.stdout))
    return options


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.name)
def test_every_option_is_one_of_flowers(
    file: Path, flower_options: dict[str, set[str]]
) -> None:
    found = commands(file.read_text())
    assert any(options for _, options in found), file
    for program, options in found:
        assert set(options) <= flower_options[program], program


def test_the_reader_of_commands() -> None:
    text = "x/flower-superlink \\\n  --host a --port 1\nother --no\n"
    assert commands(text) == [("flower-superlink", ["--host", "--port"])]
    text = "command:\n  - flower-supernode\n"
    assert commands(f"{text}  - --port=1\n") == [("flower-supernode", ["--port"])]


def create_certificates(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [str(DEPLOY / "certificates.sh"), str(folder), *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def alternative_names(certificate: Path) -> set[str]:
    text = subprocess.check_output(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", certificate],
        text=True,
    )
    return set(re.findall(r"(?:DNS|IP Address):([^,\s]+)", text))


@pytest.mark.needs("openssl")
def test_certificates_hold_all_names(tmp_path: Path) -> None:
    done = create_certificates(tmp_path, "a.example.org", "192.0.2.7", "2001:db8::7")
    assert done.returncode == 0, done.stderr
    default = {"localhost", "127.0.0.1", "0:0:0:0:0:0:0:1"}
    given = {"a.example.org", "192.0.2.7", "2001:DB8:0:0:0:0:0:7"}
    assert alternative_names(tmp_path / "server.pem") == default | given
    for secret in ("ca.key", "server.key"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0


@pytest.mark.needs("openssl")
def test_a_renewed_certificate_is_of_the_same_authority(tmp_path: Path) -> None:
    """It has a new key, and a server can use both together."""
    create_certificates(tmp_path, "a.example.org")
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert create_certificates(tmp_path, "b.example.org").returncode == 0
    after = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"server.pem", "server.key"}
    assert "b.example.org" in alternative_names(tmp_path / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("names", [(), ("https://a.example.org",), ("300.1.1.1",)])
def test_bad_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    done = create_certificates(tmp_path, *names)
    assert done.returncode != 0
    assert done.stderr
    assert not (tmp_path / "server.pem").exists()
