"""The copy that is run is the app that `flwr run .` would send."""

from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from flfa_app.launch.staging import staged
from tests.federation import ROOT


def test_the_copy_and_the_checkout_are_one_app(tmp_path: Path) -> None:
    copy = staged(ROOT, tmp_path / "app")
    assert build_fab_from_disk(copy) == build_fab_from_disk(ROOT)
    assert not (copy / "tests").exists()
