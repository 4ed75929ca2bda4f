"""The keys of a run, declared once, and their values in one run.

The checks, ``[tool.flwr.app.config]`` in ``pyproject.toml`` and
``docs/configuration.md`` come from these declarations; ``make docs`` writes the two
files. The options of a method are declared beside its strategy class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flfa_app.config.checks import config_problems, split_names
from flfa_app.config.keys import declare, keys_of, method_keys, names_in
from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from strategies.options import Flag, Number, OneOf, Text, WholeNumber
from strategies.rules import RULES

__all__ = ["AUTO", "KEYS", "RunConfig"]

AUTO = "auto"
"""The value of ``resume`` that is not a path: the newest unfinished run."""


@dataclass(frozen=True)
class RunConfig:
    """The config of one run; an attribute has ``_`` where its key has ``-``."""

    num_server_rounds: int = declare(
        30,
        WholeNumber(1),
        "number of rounds",
        group="The run",
        may_change_on_resume=True,
    )
    seed: int = declare(
        0, WholeNumber(0), "decides partition, participants, weights and batches"
    )
    output_dir: str = declare(
        "",
        Text(),
        'parent folder of the results ("": runs/)',
        is_path=True,
        may_change_on_resume=True,
        changes_results=False,
    )
    pictures: bool = declare(
        True,
        Flag(),
        "draw the PNG files of a run",
        may_change_on_resume=True,
        changes_results=False,
    )

    algorithm: str = declare(
        "fedavg", OneOf(ALGORITHMS), "federated method", group="The method"
    )
    flfa: str = declare(
        "lowest",
        OneOf(
            RULES,
            {
                "lowest": "least agreement of the clients",
                "highest": "most agreement",
                "auto": "lowest or highest, by the skewness of the first scores",
                "fixed": "the layers in fixed-fa-layers",
                "none": "plain backpropagation",
            },
        ),
        "rule that selects the layers with feedback alignment",
        flfa_only=True,
    )
    num_fa_layers: int = declare(
        1, WholeNumber(1), "layers that are selected each round", flfa_only=True
    )
    fixed_fa_layers: str = declare(
        "", Text(), 'for flfa = "fixed": names, separated by commas', flfa_only=True
    )
    candidates: str = declare(
        "effective",
        OneOf(
            {
                "effective": "where feedback alignment has an effect",
                "all": "the first layer too, as in the paper",
            }
        ),
        "layers that can be selected",
        flfa_only=True,
    )
    feedback: str = declare(
        "global",
        OneOf(
            names_in("clients.feedback.alignment:FEEDBACKS"),
            {
                "global": "the weights received",
                "random": "ablation",
                "dfa": "direct feedback alignment, ablation",
            },
        ),
        "feedback weights of the backward pass",
        flfa_only=True,
    )
    scaling: str = declare(
        "tensor",
        OneOf(
            names_in("clients.feedback.alignment:SCALINGS"), {"tensor": "the paper's"}
        ),
        "what the norm of the feedback weights is matched for",
        flfa_only=True,
    )
    diagnostics: bool = declare(
        False,
        Flag(),
        "measure the alignment of the selected layers each round",
        flfa_only=True,
        may_change_on_resume=True,
    )

    # Key and value of each option of each method.
    method_options: tuple[tuple[str, Any], ...] = tuple(
        (key.name, key.default) for key in method_keys()
    )

    model: str = declare(
        "cnn", OneOf(names_in("flfa_app.models:MODELS")), "network", group="The model"
    )
    norm: str = declare(
        "group", OneOf(names_in("flfa_app.models:NORMS")), "normalisation layers"
    )

    dataset: str = declare(
        "digits",
        OneOf(
            names_in("flfa_app.data:DATASETS"),
            {"digits": "built in", "files": "your own, in data-dir"},
        ),
        "data set",
        group="The data",
    )
    data_dir: str = declare(
        "",
        Text(),
        'folder of the data ("": its usual place)',
        is_path=True,
        may_change_on_resume=True,
        changes_results=False,
    )
    image_size: int = declare(
        0, WholeNumber(0), "size that images in folders are resized to (0: not)"
    )
    train_fraction: float = declare(
        1.0, Number(above=0, most=1), "share of the training images that is used"
    )
    partitioner: str = declare(
        "dirichlet",
        OneOf(
            names_in("flfa_app.data:PARTITIONERS"), {"natural": "by partition-column"}
        ),
        "how the training images are divided among the clients",
    )
    dirichlet_beta: float = declare(
        0.3, Number(above=0), "small: clients have few classes; large: like iid"
    )
    shards_per_client: int = declare(
        2, WholeNumber(1), "shards of a client: roughly its classes"
    )
    partition_column: str = declare("", Text(), "column with the owner of each image")
    min_partition_size: int = declare(1, WholeNumber(1), "fewest images of a client")
    report_label_counts: bool = declare(
        True,
        Flag(),
        "clients send their class counts, for partition.png",
        may_change_on_resume=True,
    )

    fraction_train: float = declare(
        0.5,
        Number(above=0, most=1),
        "share of the nodes that train in a round",
        group="The clients",
    )
    min_train_nodes: int = declare(
        2, WholeNumber(1), "fewest nodes that train in a round"
    )
    min_available_nodes: int = declare(
        1, WholeNumber(1), "nodes to wait for before round 1", may_change_on_resume=True
    )
    local_epochs: int = declare(
        5, WholeNumber(1), "passes over the local data in a round"
    )
    batch_size: int = declare(16, WholeNumber(1), "images in a step")
    augmentation: str = declare(
        "none",
        OneOf(
            names_in("clients.augmentation:AUGMENTATIONS"),
            {"crop": "shifts by up to 4 pixels"},
        ),
        "random changes of the training images",
    )
    learning_rate: float = declare(0.02, Number(above=0), "learning rate in round 1")
    lr_decay: float = declare(
        0.998, Number(above=0, most=1), "factor on the learning rate after each round"
    )
    momentum: float = declare(0.9, Number(least=0, below=1), "momentum of SGD")
    weight_decay: float = declare(0.001, Number(least=0), "weight decay of SGD")
    clip_norm: float = declare(
        0.0, Number(least=0), "largest norm of the gradient (0: no limit)"
    )

    device: str = declare(
        "auto",
        OneOf({"auto": "a GPU if there is one", "cpu": "", "cuda": ""}),
        "device of training and evaluation",
        group="The machine",
        may_change_on_resume=True,
    )
    threads_per_client: int = declare(
        1,
        WholeNumber(0),
        "torch threads (0: all CPUs of the client)",
        may_change_on_resume=True,
    )
    fast_kernels: bool = declare(
        True, Flag(), "faster gradient of depthwise convolutions on a CPU"
    )
    precision: str = declare(
        "float32",
        OneOf(names_in("clients.settings:PRECISIONS"), {"bf16": "autocast, for GPUs"}),
        "precision of the clients' forward passes",
    )

    evaluate_every: int = declare(
        1,
        WholeNumber(1),
        "rounds between evaluations",
        group="The evaluation of the global model",
        may_change_on_resume=True,
    )

    round_timeout: float = declare(
        3600.0,
        Number(above=0),
        "seconds to wait for the replies of a round",
        group="Failures",
        may_change_on_resume=True,
        changes_results=False,
    )
    over_selection: float = declare(
        1.0, Number(least=1), "nodes to ask, as a multiple of the participants"
    )
    min_replies: int = declare(
        1, WholeNumber(1), "valid replies a round needs", may_change_on_resume=True
    )
    round_attempts: int = declare(
        3,
        WholeNumber(1),
        "attempts at a round before the run stops",
        may_change_on_resume=True,
    )
    max_examples: int = declare(
        0,
        WholeNumber(0),
        "most images of a reply (0: as reported at the start)",
        may_change_on_resume=True,
    )
    max_update_norm: float = declare(
        0.0,
        Number(least=0),
        "largest norm of an update (0: no limit)",
        may_change_on_resume=True,
    )

    resume: str = declare(
        "",
        Text(),
        'run folder, or "auto": the last unfinished run',
        group="Checkpoints, resuming, early stopping",
        is_path=True,
        may_change_on_resume=True,
    )
    checkpoint_every: int = declare(
        1,
        WholeNumber(0),
        "rounds between checkpoints (0: none)",
        may_change_on_resume=True,
    )
    keep_checkpoints: int = declare(
        2,
        WholeNumber(1),
        "checkpoints to keep besides the best",
        may_change_on_resume=True,
    )
    state_dir: str = declare(
        "",
        Text(),
        'folder of the clients\' state ("": only in memory)',
        is_path=True,
        may_change_on_resume=True,
        changes_results=False,
    )
    patience: int = declare(
        0,
        WholeNumber(0),
        "rounds without a better accuracy to stop after (0: never)",
        may_change_on_resume=True,
    )
    target_accuracy: float = declare(
        0.0,
        Number(least=0, most=1),
        "accuracy to stop at (0: never)",
        may_change_on_resume=True,
    )

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> RunConfig:
        """Parse a run config, which must have every key.

        Raises
        ------
        ConfigError
            With every problem of the config.
        """
        if problems := config_problems(KEYS, run_config):
            raise ConfigError("the run config cannot be used:", problems)
        values = {k: key.values.convert(k, run_config[k]) for k, key in KEYS.items()}
        general = {
            f.name: values.pop(f.name.replace("_", "-"))
            for f in fields(cls)
            if f.metadata
        }
        return cls(**general, method_options=tuple(values.items()))

    @property
    def fixed_layers(self) -> tuple[str, ...]:
        """The names in ``fixed-fa-layers``."""
        return split_names(self.fixed_fa_layers)

    def learning_rate_in(self, server_round: int) -> float:
        """Return the learning rate of a round; the first round is 1."""
        return self.learning_rate * self.lr_decay ** (server_round - 1)

    def as_keys(self) -> dict[str, Any]:
        """Return the values under their keys, in the order of the declarations."""
        options = dict(self.method_options)
        return {
            key: options[key]
            if key in options
            else getattr(self, key.replace("-", "_"))
            for key in KEYS
        }


KEYS = keys_of(fields(RunConfig))
"""Every key, by its name."""
