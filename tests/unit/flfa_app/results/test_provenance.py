from __future__ import annotations

import subprocess
from pathlib import Path

from flfa_app.results import provenance
from flfa_app.results.provenance import git_commit


def test_git_commit_is_that_of_the_same_source(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert git_commit(tmp_path) is None  # nothing of ours here
    copy = tmp_path / "flfa_app" / "results" / "provenance.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(Path(provenance.__file__).read_bytes())
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")
    git("tag", "-a", "v1", "-m", "x")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "flfa_app" / "more.py").write_text("")
    git("add", "-A")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    copy.write_text("# another version")
    assert git_commit(tmp_path) is None
