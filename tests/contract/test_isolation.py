"""Either library works without the other's framework, and under another name."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Raises for the named packages, and tells which of them were asked for.
BLOCKER = """
import sys

class Blocker:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            self.asked.append(name)
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, PATH)
"""

# Two rounds of everything the server does, on a grid of its own.
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

class Grid:
    def get_node_ids(self):
        return [1, 2]

def record(a, b):
    arrays = {"a.weight": np.array(a), "b.weight": np.array(b)}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})

for cls in (S.FLFAFedAvg, S.FLFAFedAvgM, S.FLFAFedAdam):
    strategy = cls(layers=["a", "b"])
    arrays = record([0.0, 0.0], [0.0, 0.0])
    carried = []
    for server_round in (1, 2):
        config = ConfigRecord()
        messages = strategy.configure_train(server_round, arrays, config, Grid())
        replies = []
        for message in messages:
            carried.append(message.content["config"][S.FA_LAYERS])
            sign = 1.0 if message.metadata.dst_node_id == 1 else -1.0
            metrics = MetricRecord({"num-examples": 1})
            content = {"arrays": record([1.0, 0.0], [sign, 0.0]), "metrics": metrics}
            replies.append(Message(RecordDict(content), reply_to=message))
        new, _ = strategy.aggregate_train(server_round, replies)
        assert new is not None
        assert strategy.scores == {"a": 1.0, "b": 0.0}
    assert carried == [[], [], ["b"], ["b"]], carried

one = {"a.weight": np.array([1.0, 0.0])}
assert S.layer_cosines({"a.weight": np.zeros(2)}, [one, one], ["a"]) == {"a": 1.0}
assert S.local_drift([one, one], one) == 0.0
"""

# One local training with feedback alignment, and what the server sends for it.
CLIENT = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
assert C.eligible_layers(model) == ["0", "2"]
names = C.aligned_layers({"fa-layers": ["2"]})
settings = C.TrainSettings(epochs=1, batch_size=4, fa_layers=names)
before = model[2].weight.detach().clone()
inputs, targets = torch.randn(8, 3), torch.tensor([0, 1] * 4)
metrics = C.LocalTrainer(model, settings).fit(inputs, targets)
assert metrics["steps"] == 2
assert not torch.equal(before, model[2].weight)
"""

FEEDBACK = """
import torch
from torch import nn

x = torch.ones(1, 2, requires_grad=True)
b = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
out = copied.LinearFeedback.apply(x, torch.zeros(1, 2), b, torch.tensor(10.0))
out.sum().backward()
assert x.grad.tolist() == [[20.0, 40.0]]  # (1, 1) @ 10 b by hand

layer = nn.Linear(2, 2, bias=False)
nn.init.constant_(layer.weight, 1.0)
inputs = torch.ones(1, 2, requires_grad=True)
with C.feedback_alignment(nn.Sequential(layer), ["0"], scaling="none"):
    nn.init.constant_(layer.weight, 5.0)
    layer(inputs).sum().backward()
assert inputs.grad.tolist() == [[2.0, 2.0]]  # through the weight on entry, not 5
"""


def run(path, blocked, imports, body, checks=""):
    """Run ``body`` in a fresh interpreter that sees only ``path`` and the venv."""
    script = "\n".join(
        [
            f"BLOCKED = {set(blocked)!r}",
            f"PATH = {str(path)!r}",
            BLOCKER,
            imports,
            body,
            checks,
            "assert Blocker.asked == [], Blocker.asked",
            "assert not BLOCKED & {name.partition('.')[0] for name in sys.modules}",
            "sys.stdout.write('worked')",
        ]
    )
    # -I: neither PYTHONPATH nor the current directory; -B: no __pycache__ in the tree.
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=path,
    )
    assert (done.returncode, done.stdout) == (0, "worked"), done.stderr


@pytest.fixture(scope="module")
def relocated(tmp_path_factory):
    """Both libraries, and nothing else of the project, in ``elsewhere.deep``."""
    root = tmp_path_factory.mktemp("relocated")
    package = root / "elsewhere" / "deep"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "strategies", package / "server_side", ignore=ignore)
    shutil.copytree(ROOT / "clients", package / "client_side", ignore=ignore)
    return root


def test_strategies_without_torch():
    blocked = {"torch", "torchvision", "clients", "flfa_app", "ray"}
    run(ROOT, blocked, "import strategies as S", SERVER)


def test_clients_without_flower():
    blocked = {"flwr", "flwr_datasets", "strategies", "flfa_app", "ray"}
    run(ROOT, blocked, "import clients as C", CLIENT)


def test_strategies_under_another_name(relocated):
    blocked = {"torch", "torchvision", "strategies", "clients", "flfa_app"}
    checks = "assert S.__name__ == 'elsewhere.deep.server_side'"
    run(
        relocated,
        blocked,
        "from elsewhere.deep import server_side as S",
        SERVER,
        checks,
    )


def test_clients_under_another_name(relocated):
    """And ``feedback/autograd.py`` alone, which can be copied."""
    shutil.copy(ROOT / "clients" / "feedback" / "autograd.py", relocated / "copied.py")
    blocked = {"flwr", "strategies", "clients", "flfa_app", "torchvision"}
    imports = "import copied\nfrom elsewhere.deep import client_side as C"
    checks = "assert C.LocalTrainer.__module__.startswith('elsewhere.deep.client_side')"
    run(relocated, blocked, imports, FEEDBACK, checks)


def test_the_blocker_blocks():
    """Otherwise the tests above could not fail."""
    with pytest.raises(AssertionError, match="torch is blocked"):
        run(ROOT, {"torch"}, "import clients as C", "")
    with pytest.raises(AssertionError, match="flwr is blocked"):
        run(ROOT, {"flwr"}, "import strategies as S", "")
