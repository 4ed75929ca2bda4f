"""The keys that say how a run is operated: machine, failures, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from flfa_app.config.keys import declare, declare_adjustable, names_in
from strategies.options import Flag, Number, OneOf, Text, WholeNumber

AUTO = "auto"
"""The value of ``resume`` that is not a path: the newest unfinished run."""


@dataclass(frozen=True)
class OperationKeys:
    """How a run is operated; an attribute has ``_`` where its key has ``-``."""

    device: str = declare_adjustable(
        "auto",
        OneOf({"auto": "a GPU if there is one", "cpu": "", "cuda": ""}),
        "device of training and evaluation",
        group="The machine",
    )
    threads_per_client: int = declare_adjustable(
        1,
        WholeNumber(0),
        "torch threads (0: all of its CPUs)",
        note="Another number changes the last bits of the results.",
    )
    fast_kernels: bool = declare(
        True,
        Flag(),
        "faster depthwise convolutions on a CPU",
        note="Their gradient on small feature maps is ours "
        "([performance.md](performance.md)).",
    )
    precision: str = declare(
        "float32",
        OneOf(names_in("clients.settings:PRECISIONS"), {"bf16": "autocast, for GPUs"}),
        "precision of the forward pass",
    )

    evaluate_every: int = declare_adjustable(
        1,
        WholeNumber(1),
        "rounds between evaluations",
        group="The evaluation of the global model",
        note="The rounds whose mean accuracy is the score are always evaluated.",
    )

    round_timeout: float = declare_adjustable(
        3600.0,
        Number(above=0),
        "seconds to wait for the replies of a round",
        group="Failures",
        note="[reliability.md](reliability.md) says what happens when nodes fail.",
        changes_results=False,
    )
    over_selection: float = declare(
        1.0,
        Number(least=1),
        "nodes asked for each participant",
        note="Above 1, more nodes are asked than are needed. Those that reply count in "
        "the order in which they were drawn.",
    )
    min_replies: int = declare_adjustable(
        1,
        WholeNumber(1),
        "valid replies a round needs",
        note="A round with fewer is repeated with other nodes.",
    )
    round_attempts: int = declare_adjustable(
        3, WholeNumber(1), "attempts at a round before the run stops"
    )
    max_examples: int = declare_adjustable(
        0,
        WholeNumber(0),
        "most images in a reply (0: as reported)",
        note="With 0, a reply may claim as many as the node has reported at the start.",
    )
    max_update_norm: float = declare_adjustable(
        0.0,
        Number(least=0),
        "largest norm of an update (0: no limit)",
        note="Larger updates are not used.",
    )

    resume: str = declare_adjustable(
        "",
        Text(),
        'run folder, or `"auto"`',
        note='`"auto"` resumes the newest unfinished run with the same config. Without '
        "one, a new run starts.",
        group="Checkpoints, resuming, early stopping",
        is_path=True,
    )
    checkpoint_every: int = declare_adjustable(
        1, WholeNumber(0), "rounds between checkpoints (0: none)"
    )
    keep_checkpoints: int = declare_adjustable(
        2, WholeNumber(1), "checkpoints to keep besides the best"
    )
    state_dir: str = declare_adjustable(
        "",
        Text(),
        'folder of the clients\' state ("": none)',
        note="Some methods keep state on the clients between rounds "
        "([methods.md](methods.md)). Only in this folder does it outlive the run.",
        is_path=True,
        changes_results=False,
    )
    patience: int = declare_adjustable(
        0, WholeNumber(0), "rounds without progress to stop at (0: never)"
    )
    target_accuracy: float = declare_adjustable(
        0.0, Number(least=0, most=1), "accuracy to stop at (0: never)"
    )
