"""The commands of ``docs/deployment.md``, run in their order on two simulated machines.

A machine is a folder. Commands that would change a real machine (users, services,
packages) do nothing. Commands that create and copy files are real. A command fails if a
file that it is given does not exist, or if its program is not on ``PATH``.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.federation import ROOT

GUIDE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
MACHINES = {
    "every machine": ("server", "node"),
    "the server": ("server",),
    "each node": ("node",),
}
WHERE = re.compile(rf"# on ({'|'.join(MACHINES)})\b.*\n")

# Replaces an installed program: only checks that the files it is given exist.
PROGRAM_STUB = r"""#!/bin/bash
for x; do
  case $x in
    */server/etc/* | */server/opt/* | */node/etc/* | */node/opt/* | "$HOME"/*)
      [ -e "$x" ] || { echo "${0##*/}: $x does not exist" >&2; exit 1; } ;;
  esac
done
"""
# Replace programs that need root, a network or a service manager.
SHELL_FUNCTIONS = r"""
set -eu
function sudo { while [[ $1 == -* ]]; do [[ $1 != -u ]] || shift; shift; done; "$@"; }
function useradd { :; }
function systemctl { :; }
function nginx { :; }
function curl { bash "$PROGRAM_STUB" "$@"; }
function chgrp { bash "$PROGRAM_STUB" "$@"; }
function git { mkdir -p "$3"; cp -r "$CHECKOUT/deploy" "$3"; }
function python3 {
  mkdir -p "$3/bin"
  for program in pip flwr flower-superlink flower-supernode; do
    cp "$PROGRAM_STUB" "$3/bin/$program"
  done
}
function install {
  local all=" $* "
  read -ra words <<< "${all/ -g flfa / }"
  command install "${words[@]}"
}
function found {
  local path=${1/#$SERVER:$HERE/$SERVER_FOLDER}
  echo "${path/#$SERVER:/$SERVER_FOLDER/home/}"
}
function scp { cp "$(found "$1")" "$(found "$2")"; }
"""


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)


def machine(folder: Path) -> Path:
    """Create the folders that a machine has before the first command."""
    for name in ("home", "etc/systemd/system", "etc/nginx/conf.d", "var/lib/flfa/runs"):
        (folder / name).mkdir(parents=True)
    return folder


def paste(block: str, folder: Path) -> None:
    """Run a block in a machine's shell, in the state that the last block has left."""
    installed = folder.parent / "installed"
    installed.write_text(PROGRAM_STUB)
    installed.chmod(0o755)
    here = re.sub(r"(?<![\w.~])/(etc|opt|var)/", rf"{folder}/\1/", block)
    terminal = folder / "terminal"
    if not terminal.exists():
        terminal.write_text(f"cd '{folder}/home'\n")
    script = f"{SHELL_FUNCTIONS}\n. '{terminal}'\n{here}\n"
    script += f"{{ echo \"cd '$PWD'\"; export -p; }} > '{terminal}'\n"
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "HERE": str(folder),
        "PROGRAM_STUB": str(installed),
        "CHECKOUT": str(ROOT),
        "SERVER": "superlink.example.org",
        "SERVER_FOLDER": str(folder.parent / "server"),
    }
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both machines after all blocks have run."""
    folder = tmp_path_factory.mktemp("machines")
    folders = {name: machine(folder / name) for name in ("server", "node")}
    for block in blocks():
        where = WHERE.match(block)
        assert where is not None
        for name in MACHINES[where[1]]:
            paste(block, folders[name])
    return folders


def test_every_block_says_on_which_machine_it_runs() -> None:
    assert len(blocks()) >= 10
    for block in blocks():
        assert WHERE.match(block), block


@pytest.mark.needs("openssl", "ssh-keygen")
def test_all_blocks_work_in_order(machines: dict[str, Path]) -> None:
    """The files that the units and nginx read exist, with the right permissions."""
    server, node = machines["server"], machines["node"]
    units = "etc/systemd/system"
    needed = {
        server / units / "flfa-superlink.service": server,
        server / "etc/nginx/conf.d/flfa.conf": server,
        node / units / "flfa-supernode@.service": node,
        node / "etc/flfa/mine.env": node,
    }
    for file, folder in needed.items():
        text = re.sub(r"#.*", "", file.read_text()).replace("%i", "mine")
        paths = re.findall(r"(?<![\w.])/(?:etc|opt)/[\w./-]*\w", text)
        assert paths, file
        for path in paths:
            assert (folder / path[1:]).exists(), f"{file.name}: {path}"
    authorities = {
        (folder / "etc/flfa/ca.crt").read_bytes() for folder in (server, node)
    }
    assert len(authorities) == 1
    for secret in (server / "etc/flfa/server.key", node / "etc/flfa/mine"):
        assert secret.stat().st_mode & 0o777 == 0o640
    assert (node / "etc/flfa/mine.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    config = tomllib.loads((server / "home/.flwr/config.toml").read_text())
    certificate = config["superlink"]["prod"]["root-certificates"]
    assert certificate == str(server / "etc/flfa/ca.crt")


@pytest.mark.parametrize(
    "block",
    [
        "deploy/certificates.sh x a.example.org",
        "sudo install -m 644 deploy/nginx.conf /etc/nginx/conf.d/flfa.conf",
        "sudo ssh-keygen -q -t ecdsa -N '' -f /etc/flfa/mine",
        "flwr list prod",
        "curl --cacert /etc/flfa/ca.crt https://superlink.example.org:8443/",
        "scp superlink.example.org:ca.crt ~/",
        "cd /opt/flfa",
    ],
)
def test_a_missing_file_or_program_is_noticed(block: str, tmp_path: Path) -> None:
    """On a new machine, or outside of the checkout."""
    machine(tmp_path / "server")
    with pytest.raises(AssertionError, match=re.escape(block.split()[0])):
        paste(block, machine(tmp_path / "node"))
