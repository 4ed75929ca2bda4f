"""Record runs with one version of the code, compare them with another.

``python -m tests.same_bits record FOLDER`` makes the runs and keeps a digest of what
must not change: ``metrics.jsonl`` and ``summary.json`` without their seconds, and
``model.safetensors``. ``python -m tests.same_bits compare FOLDER`` makes them again and
names every run that differs. Both run the real ServerApp and ClientApp in one process,
without Ray. A change that does not touch the maths must compare equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from tests.federation import metrics, run_app

METHODS = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "moon",
    "fedsol",
    "fedrs",
    "fedlc",
    "fedacg",
    "feddyn",
    "scaffold",
]
TINY = {"local-epochs": 1, "train-fraction": 0.4, "num-server-rounds": 2}


def runs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the config of every run."""
    for method in METHODS:
        for rule in ("none", "lowest"):
            yield f"{method}-{rule}", {"algorithm": method, "flfa": rule}
    for rule in ("highest", "auto", "random"):
        yield f"rule-{rule}", {"flfa": rule, "num-fa-layers": 2}
    yield "rule-fixed", {"flfa": "fixed", "fixed-fa-layers": "head"}
    yield "candidates-all", {"candidates": "all"}
    for feedback in ("random", "dfa"):
        yield f"feedback-{feedback}", {"feedback": feedback, "num-fa-layers": 2}
    for scaling in ("channel", "none"):
        yield f"scaling-{scaling}", {"scaling": scaling, "num-fa-layers": 2}
    for model in ("mobilenet_v2", "mobilenet_v2_imagenet", "resnet18", "resnet50"):
        for norm in ("group", "batch"):
            yield f"{model}-{norm}", {"model": model, "norm": norm, **TINY}
    yield "cnn-batch", {"norm": "batch"}
    yield "diagnostics", {"diagnostics": True, "num-fa-layers": 2}
    yield "augmentation", {"augmentation": "crop-flip", "algorithm": "moon"}
    yield "bf16", {"precision": "bf16"}
    yield "iid", {"partitioner": "iid", "over-selection": 1.5}
    yield "shards", {"partitioner": "shards"}
    yield (
        "natural",
        {
            "dataset": "files",
            "data-dir": str(_own_data(folder)),
            "partitioner": "natural",
            "partition-column": "owner",
            "norm": "batch",
        },
    )
    yield "evaluate-every", {"evaluate-every": 2, "num-server-rounds": 5}
    yield "no-fast-kernels", {"model": "mobilenet_v2", "fast-kernels": False, **TINY}


def digests(folder: Path, only: str = "*") -> dict[str, dict[str, str]]:
    """Make the runs whose name matches a pattern; return the digests of their files."""
    found = {}
    output = folder / "runs"
    output.mkdir()
    for name, config in runs(folder):
        if not fnmatch(name, only):
            continue
        found[name] = _digest(run_app(output, config, nodes=4))
        sys.stderr.write(f"{name}\n")
    for method in ("fedavg", "moon", "feddyn", "scaffold"):
        if not fnmatch(f"resume-{method}", only):
            continue
        found[f"resume-{method}"] = _digest(_resumed(folder, method))
        sys.stderr.write(f"resume-{method}\n")
    return found


def _resumed(folder: Path, method: str) -> Path:
    """Run two rounds, then resume from the checkpoint and run two more."""
    config = {
        "algorithm": method,
        "num-server-rounds": 2,
        "state-dir": str(folder / f"state-{method}"),
        "seed": 3,
    }
    output = folder / "runs"
    results = run_app(output, config, nodes=4)
    more = {**config, "num-server-rounds": 4, "resume": str(results)}
    return run_app(output, more, nodes=4, new_folder=False)


def _own_data(folder: Path) -> Path:
    """Write an ``.npz`` file of 240 small images of six owners."""
    rng = np.random.default_rng(0)
    path = folder / "own"
    path.mkdir()
    labels = rng.integers(0, 3, 240)
    images = rng.integers(0, 256, (240, 12, 12)) // 2 + 40 * labels[:, None, None]
    np.savez(
        path / "own.npz",
        train_images=images[:180].astype(np.uint8),
        train_labels=labels[:180],
        train_owner=np.arange(180) % 4,
        test_images=images[180:].astype(np.uint8),
        test_labels=labels[180:],
    )
    return path / "own.npz"


def _digest(results: Path) -> dict[str, str]:
    summary = json.loads((results / "summary.json").read_text())
    summary = {k: v for k, v in summary.items() if "seconds" not in k}
    model = (results / "model.safetensors").read_bytes()
    return {
        "metrics.jsonl": _hash(json.dumps(metrics(results)).encode()),
        "summary.json": _hash(json.dumps(summary, sort_keys=True).encode()),
        "model.safetensors": _hash(model),
    }


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    """Record or compare; return 1 if a run differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="pattern of names: 'resume-*'")
    arguments = parser.parse_args()
    file = arguments.folder / "same_bits.json"
    with tempfile.TemporaryDirectory() as folder:
        found = digests(Path(folder), arguments.only)
    if arguments.action == "record":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1))
        return 0
    recorded = json.loads(file.read_text())
    different = []
    recorded = {k: v for k, v in recorded.items() if fnmatch(k, arguments.only)}
    for name, before in recorded.items():
        now = found.get(name, {})
        if files := [file for file in before if now.get(file) != before[file]]:
            different.append(f"{name}: {', '.join(files)}")
    sys.stdout.write("\n".join(different) + "\n" if different else "")
    sys.stdout.write(f"{len(recorded) - len(different)} of {len(recorded)} the same\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
