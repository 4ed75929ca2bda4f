"""The blocks of ``docs/deployment.md``, pasted in their order into two machines.

The machines are folders. What would change a real one (users, services, packages) does
nothing here; what makes and copies files is real, and whatever is handed a file that is
not there fails, as do programs that are not on ``PATH``.
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

# What is installed in an environment: does nothing, but with files that are there.
INSTALLED = r"""#!/bin/bash
for x; do
  case $x in
    */server/etc/* | */server/opt/* | */node/etc/* | */node/opt/* | "$HOME"/*)
      [ -e "$x" ] || { echo "${0##*/}: $x is not there" >&2; exit 1; } ;;
  esac
done
"""
# In the place of programs that need root, a network or a service manager.
STAND_INS = r"""
set -eu
function sudo { while [[ $1 == -* ]]; do [[ $1 != -u ]] || shift; shift; done; "$@"; }
function useradd { :; }
function systemctl { :; }
function nginx { :; }
function curl { bash "$INSTALLED" "$@"; }
function chgrp { bash "$INSTALLED" "$@"; }
function git { mkdir -p "$3"; cp -r "$CHECKOUT/deploy" "$3"; }
function python3 {
  mkdir -p "$3/bin"
  for program in pip flwr flower-superlink flower-supernode; do
    cp "$INSTALLED" "$3/bin/$program"
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
    """What every machine has before anybody reads the guide."""
    for name in ("home", "etc/systemd/system", "etc/nginx/conf.d", "var/lib/flfa/runs"):
        (folder / name).mkdir(parents=True)
    return folder


def paste(block: str, folder: Path) -> None:
    """Paste a block into a machine's terminal, as the one before has left it."""
    installed = folder.parent / "installed"
    installed.write_text(INSTALLED)
    installed.chmod(0o755)
    here = re.sub(r"(?<![\w.~])/(etc|opt|var)/", rf"{folder}/\1/", block)
    terminal = folder / "terminal"
    if not terminal.exists():
        terminal.write_text(f"cd '{folder}/home'\n")
    script = f"{STAND_INS}\n. '{terminal}'\n{here}\n"
    script += f"{{ echo \"cd '$PWD'\"; export -p; }} > '{terminal}'\n"
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "HERE": str(folder),
        "INSTALLED": str(installed),
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
    """Both machines after all blocks."""
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
def test_all_blocks_work_in_their_order(machines: dict[str, Path]) -> None:
    """What the units and nginx then read is there, with the rights they need."""
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
def test_the_machines_notice_what_is_missing(block: str, tmp_path: Path) -> None:
    """On a new machine, or in another folder than the checkout."""
    machine(tmp_path / "server")
    with pytest.raises(AssertionError, match=re.escape(block.split()[0])):
        paste(block, machine(tmp_path / "node"))
