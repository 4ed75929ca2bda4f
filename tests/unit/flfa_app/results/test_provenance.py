from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from flfa_app.results import provenance
from flfa_app.results.provenance import git_commit, package_versions


def test_the_commit_is_that_of_a_checkout_with_the_same_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert git_commit(tmp_path) is None  # no copy of this package
    copy = tmp_path / "flfa_app" / "results" / "provenance.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(Path(provenance.__file__).read_bytes())
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    git("tag", "-a", "v1", "-m", "x")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "new.py").write_text("")
    git("add", "-A")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        assert git_commit(tmp_path) is None
    copy.write_text("# another version")
    assert git_commit(tmp_path) is None


def test_versions_are_those_of_the_installed_packages() -> None:
    versions = package_versions()
    assert versions.pop("python").startswith("3.")
    assert versions == {name: version(name) for name in versions}
    assert {"flwr", "torch", "numpy"} <= versions.keys()
