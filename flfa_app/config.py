"""The run config: parsed once, checked completely, frozen.

``[tool.flwr.app.config]`` in ``pyproject.toml`` lists every key with its default and
what it means; here is what each may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from clients.augmentation import AUGMENTATIONS
from clients.feedback.alignment import FEEDBACKS, SCALINGS
from clients.methods import fedrs, fedsol
from clients.settings import PRECISIONS
from flfa_app.data import DATASETS, PARTITIONERS
from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from flfa_app.models import MODELS, NORMS
from strategies.methods.momentum import FORMS
from strategies.rules import RULES

__all__ = ["AUTO", "RunConfig"]

AUTO = "auto"
"""The value of ``resume`` that is not a path: the newest unfinished run."""


class _Check(NamedTuple):
    """What a value must be."""

    type: type
    allowed: str
    accepts: Callable[[Any], bool]


def _one_of(names: Collection[str]) -> Any:
    return _key(_Check(str, "one of " + ", ".join(names), lambda v: v in names))


def _whole(least: int) -> Any:
    check = _Check(int, f"a whole number, {least} or more", lambda v: v >= least)
    return _key(check)


def _real(low: str, high: str = "inf") -> Any:
    """Allow the numbers between two bounds; ``"> 0"`` leaves the bound itself out."""
    least, most = float(low.lstrip("> ")), float(high.lstrip("< "))

    def accepts(value: float) -> bool:
        above = value > least if low.startswith(">") else value >= least
        below = value < most if high.startswith("<") else value <= most
        return above and below and math.isfinite(value)

    allowed = f"a number {'above' if low.startswith('>') else 'from'} {least:g}"
    if math.isfinite(most):
        allowed += f" {'to below' if high.startswith('<') else 'to'} {most:g}"
    return _key(_Check(float, allowed, accepts))


def _text() -> Any:
    return _key(_Check(str, "a text", lambda v: True))


def _flag() -> Any:
    return _key(_Check(bool, "true or false", lambda v: True))


def _key(check: _Check) -> Any:
    return field(metadata={"check": check})


@dataclass(frozen=True)
class RunConfig:
    """One run, as its config describes it; see ``pyproject.toml`` for the meaning."""

    num_server_rounds: int = _whole(1)
    seed: int = _whole(0)
    output_dir: str = _text()
    pictures: bool = _flag()

    algorithm: str = _one_of(ALGORITHMS)
    flfa: str = _one_of(RULES)
    num_fa_layers: int = _whole(1)
    fixed_fa_layers: str = _text()
    candidates: str = _one_of(("effective", "all"))
    feedback: str = _one_of(FEEDBACKS)
    scaling: str = _one_of(SCALINGS)
    diagnostics: bool = _flag()

    fedprox_mu: float = _real("0")
    fedavgm_form: str = _one_of(FORMS)
    fedavgm_momentum: float = _real("0", "< 1")
    fedavgm_learning_rate: float = _real("> 0")
    moon_mu: float = _real("0")
    moon_temperature: float = _real("> 0")
    fedsol_rho: float = _real("0")
    fedsol_variant: str = _one_of(fedsol.VARIANTS)
    fedsol_part: str = _one_of(fedsol.PARTS)
    fedrs_alpha: float = _real("0", "1")
    fedrs_variant: str = _one_of(fedrs.VARIANTS)
    fedlc_tau: float = _real("0")
    fedacg_lambda: float = _real("0", "< 1")
    fedacg_beta: float = _real("0")
    feddyn_alpha: float = _real("0")
    scaffold_learning_rate: float = _real("> 0")

    model: str = _one_of(MODELS)
    norm: str = _one_of(NORMS)

    dataset: str = _one_of(DATASETS)
    data_dir: str = _text()
    image_size: int = _whole(0)
    train_fraction: float = _real("> 0", "1")
    partitioner: str = _one_of(PARTITIONERS)
    dirichlet_beta: float = _real("> 0")
    shards_per_client: int = _whole(1)
    partition_column: str = _text()
    min_partition_size: int = _whole(1)
    report_label_counts: bool = _flag()

    fraction_train: float = _real("> 0", "1")
    min_train_nodes: int = _whole(1)
    min_available_nodes: int = _whole(1)
    local_epochs: int = _whole(1)
    batch_size: int = _whole(1)
    augmentation: str = _one_of(AUGMENTATIONS)
    learning_rate: float = _real("> 0")
    lr_decay: float = _real("> 0", "1")
    momentum: float = _real("0", "< 1")
    weight_decay: float = _real("0")
    clip_norm: float = _real("0")

    device: str = _one_of(("auto", "cpu", "cuda"))
    threads_per_client: int = _whole(0)
    fast_kernels: bool = _flag()
    precision: str = _one_of(PRECISIONS)

    evaluate_every: int = _whole(1)

    round_timeout: float = _real("> 0")
    over_selection: float = _real("1")
    min_replies: int = _whole(1)
    round_attempts: int = _whole(1)
    max_examples: int = _whole(0)
    max_update_norm: float = _real("0")

    resume: str = _text()
    checkpoint_every: int = _whole(0)
    keep_checkpoints: int = _whole(1)
    state_dir: str = _text()
    patience: int = _whole(0)
    target_accuracy: float = _real("0", "1")

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> RunConfig:
        """Parse a run config; raise :class:`ConfigError` with every problem in it."""
        checks = {key_of(f.name): f.metadata["check"] for f in fields(cls)}
        problems = [_unknown(key, checks) for key in run_config if key not in checks]
        wrong = {key: _problem(key, check, run_config) for key, check in checks.items()}
        problems += [problem for problem in wrong.values() if problem]
        problems += _contradictions(
            {key: run_config[key] for key in checks if not wrong[key]}
        )
        if problems:
            raise ConfigError("the run config cannot be used:", problems)
        # TOML's 1 is a whole number, also where 1.0 is meant.
        values = {key: check.type(run_config[key]) for key, check in checks.items()}
        return cls(**{f.name: values[key_of(f.name)] for f in fields(cls)})

    @property
    def fixed_layers(self) -> tuple[str, ...]:
        """The names in ``fixed-fa-layers``."""
        return _names(self.fixed_fa_layers)

    def learning_rate_in(self, server_round: int) -> float:
        """Return the learning rate of a round (the first is 1)."""
        return self.learning_rate * self.lr_decay ** (server_round - 1)

    def as_keys(self) -> dict[str, Any]:
        """Return the config under the names it has in files."""
        return {key_of(f.name): getattr(self, f.name) for f in fields(self)}


def key_of(name: str) -> str:
    """Return a field's key in the run config."""
    return name.replace("_", "-")


def _unknown(key: str, known: Collection[str]) -> str:
    close = get_close_matches(key, known, n=1)
    return f"{key} is not a key" + (f"; did you mean {close[0]}?" if close else "")


def _problem(key: str, check: _Check, given: Mapping[str, Any]) -> str | None:
    if key not in given:
        return f"{key} is missing; it must be {check.allowed}"
    value = given[key]
    # A whole number is a fine float; true is an int to Python but not to a person.
    types = (int, float) if check.type is float else (check.type,)
    right_type = isinstance(value, types) and (
        isinstance(value, bool) == (check.type is bool)
    )
    if right_type and check.accepts(value):
        return None
    return f"{key} is {value!r}; it must be {check.allowed}"


def _contradictions(right: Mapping[str, Any]) -> list[str]:
    """Return what is wrong between keys that are right one by one."""
    problems = []
    rule, layers = right.get("flfa"), right.get("fixed-fa-layers")
    if rule == "fixed" and layers is not None and not _names(layers):
        problems.append(
            "fixed-fa-layers is empty, but flfa is 'fixed'; name the layers, separated "
            "by commas"
        )
    if rule not in (None, "fixed") and layers is not None and _names(layers):
        problems.append(
            f"fixed-fa-layers is {layers!r}, but flfa is {rule!r}; set flfa to 'fixed' "
            "or leave fixed-fa-layers empty"
        )
    if right.get("feedback") == "dfa" and right.get("scaling", "tensor") != "tensor":
        problems.append(
            f"scaling is {right['scaling']!r}, but feedback is 'dfa', which has no "
            "weight to rescale; set scaling to 'tensor'"
        )
    partitioner, column = right.get("partitioner"), right.get("partition-column")
    if partitioner == "natural" and column == "":
        problems.append(
            "partition-column is empty, but partitioner is 'natural'; name the column "
            "of the data that says whose an image is"
        )
    if partitioner not in (None, "natural") and column:
        problems.append(
            f"partition-column is {column!r}, but partitioner is {partitioner!r}; set "
            "partitioner to 'natural' or leave partition-column empty"
        )
    if (
        right.get("feedback") == "dfa"
        and right.get("algorithm") == "fedsol"
        and right.get("fedsol-part") == "head"
        and rule not in (None, "none")
    ):
        problems.append(
            "fedsol-part is 'head', but feedback is 'dfa': the head runs a second time "
            "on its own, without the output whose error dfa needs; set fedsol-part to "
            "'all'"
        )
    if layers is not None and len(set(_names(layers))) < len(_names(layers)):
        problems.append(f"fixed-fa-layers is {layers!r}; it names a layer twice")
    return problems


def _names(text: str) -> tuple[str, ...]:
    names = (name.strip() for name in text.split(","))
    return tuple(name for name in names if name)
