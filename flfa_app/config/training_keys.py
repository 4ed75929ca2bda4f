"""The keys that say what is trained: the method, the model, the data, the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flfa_app.config.keys import declare, declare_adjustable, method_keys, names_in
from flfa_app.methods import ALGORITHMS
from strategies.options import Flag, Number, OneOf, Text, WholeNumber
from strategies.rules import RULES


@dataclass(frozen=True)
class TrainingKeys:
    """What is trained; an attribute has ``_`` where its key has ``-``."""

    num_server_rounds: int = declare_adjustable(
        30, WholeNumber(1), "number of rounds", group="The run"
    )
    seed: int = declare(
        0,
        WholeNumber(0),
        "seed of all random numbers",
        note="It decides partition, participants, initial weights and batch order.",
    )
    output_dir: str = declare_adjustable(
        "",
        Text(),
        'parent folder of the results ("": `runs`)',
        note="With `flwr run` a relative path starts at the folder in which Flower's "
        "SuperLink was started.",
        is_path=True,
        changes_results=False,
    )
    pictures: bool = declare_adjustable(
        True,
        Flag(),
        "draw the PNG files of a run",
        note="They are `partition.png`, `progress.png`, `scores.png` and "
        "`cosines.png`.",
        changes_results=False,
    )

    algorithm: str = declare(
        "fedavg",
        OneOf(tuple(ALGORITHMS)),
        "federated method",
        group="The method",
        note="[methods.md](methods.md) describes the methods.",
    )
    flfa: str = declare(
        "lowest",
        OneOf(
            RULES,
            {
                "lowest": "least agreement of the clients",
                "highest": "most agreement",
                "auto": "lowest or highest, by the skewness of the first scores",
                "fixed": "those in `fixed-fa-layers`",
                "none": "plain backpropagation",
            },
        ),
        "rule that selects layers for feedback alignment",
        flfa_only=True,
    )
    num_fa_layers: int = declare(
        1, WholeNumber(1), "layers that are selected each round", flfa_only=True
    )
    fixed_fa_layers: str = declare(
        "", Text(), 'for `flfa = "fixed"`: names, with commas', flfa_only=True
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
            names_in("clients.feedback.alignment:SCALINGS"),
            {
                "tensor": "that of the whole weight, as in the paper",
                "channel": "that of each output channel",
                "none": "not rescaled",
            },
        ),
        "norm of the feedback weights",
        flfa_only=True,
    )
    diagnostics: bool = declare_adjustable(
        False,
        Flag(),
        "measure the alignment of the layers",
        note="Clients report, for each selected layer, the angle between feedback "
        "weights and weights and the error of the feedback ([metrics.md](metrics.md)).",
        flfa_only=True,
    )

    # Key and value of each option of each method.
    method_options: tuple[tuple[str, Any], ...] = tuple(
        (key.name, key.default) for key in method_keys()
    )

    model: str = declare(
        "cnn",
        OneOf(names_in("flfa_app.models:MODELS")),
        "network",
        group="The model",
        note="Channels, image size and classes come from the data.",
    )
    norm: str = declare(
        "group", OneOf(names_in("flfa_app.models:NORMS")), "normalisation layers"
    )

    dataset: str = declare(
        "digits",
        OneOf(
            names_in("flfa_app.data.sources:DATASETS"),
            {"digits": "built in", "files": "your own, in `data-dir`"},
        ),
        "data set",
        group="The data",
        note="[data.md](data.md) says where each one comes from.",
    )
    data_dir: str = declare_adjustable(
        "",
        Text(),
        'folder of the data ("": its usual place)',
        is_path=True,
        changes_results=False,
    )
    image_size: int = declare(
        0,
        WholeNumber(0),
        "pixels a side (0: as the images are)",
        note="Only photographs in folders are resized; with 0, those of `imagenet100` "
        "are resized to 64.",
    )
    train_fraction: float = declare(
        1.0, Number(above=0, most=1), "share of the training images to use"
    )
    partitioner: str = declare(
        "dirichlet",
        OneOf(
            names_in("flfa_app.data.partition:PARTITIONERS"),
            {
                "dirichlet": "shares of the classes drawn from Dir(beta)",
                "shards": "pieces of the images sorted by class",
                "natural": "by the owner in `partition-column`",
            },
        ),
        "division of the training images",
    )
    dirichlet_beta: float = declare(
        0.3, Number(above=0), "small: few classes a client; large: like `iid`"
    )
    shards_per_client: int = declare(
        2, WholeNumber(1), "shards of a client, about its classes"
    )
    partition_column: str = declare("", Text(), "for `natural`: column of the owners")
    min_partition_size: int = declare(1, WholeNumber(1), "fewest images of a client")
    report_label_counts: bool = declare_adjustable(
        True,
        Flag(),
        "clients report their class counts",
        note="`partition.png` shows them.",
    )

    fraction_train: float = declare(
        0.5,
        Number(above=0, most=1),
        "share of the nodes that train in a round",
        group="The clients",
    )
    min_train_nodes: int = declare(
        2,
        WholeNumber(1),
        "fewest nodes that train in a round",
        note="If the federation has fewer nodes, all of them train.",
    )
    min_available_nodes: int = declare_adjustable(
        1, WholeNumber(1), "nodes to wait for before round 1"
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
        0.998, Number(above=0, most=1), "factor on it after each round"
    )
    momentum: float = declare(0.9, Number(least=0, below=1), "momentum of SGD")
    weight_decay: float = declare(0.001, Number(least=0), "weight decay of SGD")
    clip_norm: float = declare(
        0.0, Number(least=0), "largest norm of the gradient (0: no limit)"
    )
