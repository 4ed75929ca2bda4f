"""Check data, model and machine of a run before it starts; report all problems."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from clients import effective_layers, eligible_layers
from flfa_app.config import RunConfig
from flfa_app.data.dataset import ImageDataset
from flfa_app.errors import ConfigError
from flfa_app.task import device_of, images_of, model_of, partitions_of


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs before its nodes are known.

    ``eligible`` are the layers that can be scored, ``candidates`` those of them that
    can be selected.
    """

    device: str
    images: ImageDataset
    model: nn.Module
    eligible: list[str]
    candidates: list[str]


def prepare(config: RunConfig, num_partitions: int | None = None) -> Prepared:
    """Load the data and build the model of a run.

    Data, model and machine may contradict a valid config: all problems are in one
    :class:`ConfigError`. ``num_partitions`` is the number of nodes, if it is known.
    """
    problems: list[str] = []
    device = ""
    try:
        device = device_of(config)
    except RuntimeError as problem:
        problems.append(str(problem))
    try:
        images = images_of(config)
    except (OSError, ValueError, KeyError) as problem:
        # Model and partition cannot be checked without the data.
        raise _error([*problems, str(problem)]) from problem
    if num_partitions is not None:
        try:
            partitions_of(config, num_partitions)
        except ValueError as problem:
            problems.append(str(problem))
    model = model_of(config)
    eligible, candidates = _layers(config, model, images)
    problems += _layer_problems(config, eligible, candidates)
    if problems:
        raise _error(problems)
    return Prepared(device, images, model, eligible, candidates)


def _layers(
    config: RunConfig, model: nn.Module, images: ImageDataset
) -> tuple[list[str], list[str]]:
    """Return the layers that can be scored, and those that can be selected."""
    arrays = model.state_dict()
    # The server scores arrays; a parametrised layer has no array of its weight.
    eligible = [x for x in eligible_layers(model) if f"{x}.weight" in arrays]
    if config.feedback == "dfa":
        # Direct feedback changes the first layer too, but not the last.
        return eligible, eligible[:-1]
    if config.candidates == "all":
        return eligible, eligible
    effective = set(effective_layers(model, images.tensor(images.train[:1])))
    return eligible, [x for x in eligible if x in effective]


def _layer_problems(
    config: RunConfig, eligible: list[str], candidates: list[str]
) -> list[str]:
    allowed = f"{config.model} has the candidates {', '.join(candidates)}"
    problems = []
    chosen_by_score = config.flfa not in ("none", "fixed")
    if chosen_by_score and config.num_fa_layers > len(candidates):
        problems.append(
            f"num-fa-layers is {config.num_fa_layers}; it must be at most "
            f"{len(candidates)}: {allowed}"
        )
    for layer in config.fixed_layers:
        if layer not in eligible:
            problems.append(f"fixed-fa-layers names {layer}; {allowed}")
        elif layer not in candidates:
            reason = (
                "feedback 'dfa' has no effect on the last layer, whose error is that "
                "of the output"
                if config.feedback == "dfa"
                else "its input carries no gradient, so feedback alignment does "
                "nothing there (candidates = 'all' allows it)"
            )
            problems.append(f"fixed-fa-layers names {layer}: {reason}; {allowed}")
    return problems


def _error(problems: list[str]) -> ConfigError:
    return ConfigError("the run cannot start:", problems)
