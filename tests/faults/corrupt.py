"""Replies of broken or hostile clients, and a grid that sends them.

A corruption changes the content of a valid reply in place. The server must reject
every one of them.
"""

from __future__ import annotations

import io
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from tests.federation import InProcessGrid
from tests.unit.strategies.fakes import over_the_wire

__all__ = ["CORRUPTIONS", "STEP_LENGTHS", "CorruptingGrid", "Corruption"]

NUMPY = "numpy.ndarray"
Corrupt = Callable[[RecordDict, random.Random], None]


class Corruption(NamedTuple):
    """A way to corrupt a reply, and the group it belongs to."""

    kind: str
    name: str
    corrupt: Corrupt


CORRUPTIONS: list[Corruption] = []


def corruption(kind: str, **variants: Any) -> Callable[[Any], Any]:
    """Register a function, once or once for each of its variants."""

    def register(function: Any) -> Any:
        name = function.__name__.strip("_")
        for label, value in variants.items():

            def corrupt(
                content: RecordDict, rng: random.Random, value: Any = value
            ) -> None:
                function(content, rng, value)

            CORRUPTIONS.append(Corruption(kind, f"{name}:{label}", corrupt))
        if not variants:
            CORRUPTIONS.append(Corruption(kind, name, function))
        return function

    return register


def _arrays(content: RecordDict) -> ArrayRecord:
    return content.array_records["arrays"]


def _metrics(content: RecordDict) -> MetricRecord:
    return content.metric_records["metrics"]


def _draw_array(
    content: RecordDict, rng: random.Random, where: Any = lambda a: True
) -> str:
    """Draw the name of an array that fulfils a condition."""
    return rng.choice(
        [name for name, array in _arrays(content).items() if where(array)]
    )


def _floating(array: Array) -> bool:
    return array.dtype == "float32"


def _set_array(content: RecordDict, name: str, array: np.ndarray) -> None:
    _arrays(content)[name] = Array(np.asarray(array))


def _replace_fields(content: RecordDict, name: str, **fields: Any) -> None:
    """Replace fields of an array: its declared type or shape, or its bytes."""
    old = _arrays(content)[name]
    known = {"dtype": old.dtype, "shape": old.shape, "stype": NUMPY, "data": old.data}
    _arrays(content)[name] = Array(**{**known, **fields})


def _renamed(content: RecordDict, names: Mapping[str, str]) -> None:
    pairs = [(names.get(k, k), array) for k, array in _arrays(content).items()]
    content["arrays"] = ArrayRecord(dict(pairs))


# Names of arrays


@corruption("names")
def _missing(content: RecordDict, rng: random.Random) -> None:
    del _arrays(content)[_draw_array(content, rng)]


@corruption("names")
def _no_arrays(content: RecordDict, rng: random.Random) -> None:
    content["arrays"] = ArrayRecord()


@corruption("names")
def _one_more(content: RecordDict, rng: random.Random) -> None:
    _set_array(content, f"more.{rng.random()}", np.zeros(3, np.float32))


@corruption("names", upper=str.upper, blank=lambda x: x + " ", line="{}\n".format)
def _other_name(content: RecordDict, rng: random.Random, change: Any) -> None:
    name = _draw_array(content, rng)
    _renamed(content, {name: change(name)})


@corruption("names")
def _exchanged_names(content: RecordDict, rng: random.Random) -> None:
    one, other = rng.sample([*_arrays(content)], 2)
    _renamed(content, {one: other, other: one})


@corruption("names")
def _another_order(content: RecordDict, rng: random.Random) -> None:
    names = [*_arrays(content)]
    while names == [*_arrays(content)]:
        rng.shuffle(names)
    content["arrays"] = ArrayRecord({name: _arrays(content)[name] for name in names})


# Shapes


@corruption(
    "shapes",
    broadcast=lambda a: a.reshape(-1)[:1],
    scalar=lambda a: a.reshape(-1)[0],
    flat=lambda a: a.reshape(-1),
    longer=lambda a: a[None],
    turned=lambda a: a.reshape(a.shape[::-1]),
    cut=lambda a: a[:-1],
    twice=lambda a: np.concatenate([a, a]),
    empty=lambda a: a[:0],
)
def _reshaped(content: RecordDict, rng: random.Random, change: Any) -> None:
    changed = {
        name: change(array.numpy())
        for name, array in _arrays(content).items()
        if array.shape and np.shape(change(array.numpy())) != array.shape
    }
    name = rng.choice([*changed])
    _set_array(content, name, changed[name])


@corruption("shapes", huge=(2**40, 2**40), negative=(-1,), none=(), zero=(0,))
def _said_shape(content: RecordDict, rng: random.Random, shape: Any) -> None:
    _replace_fields(
        content, _draw_array(content, rng, lambda a: a.shape != shape), shape=shape
    )


# Types


@corruption(
    "types",
    **{
        str(x): x
        for x in ("float16", "float64", "int64", "int8", "bool", "complex64", ">f4")
    },
    text="U8",
    fields=[("x", "f4")],
)
def _other_type(content: RecordDict, rng: random.Random, dtype: Any) -> None:
    name = _draw_array(content, rng, _floating)
    array = _arrays(content)[name].numpy()
    fields = isinstance(dtype, list)  # to which floats cannot be cast
    new = np.zeros(array.shape, dtype) if fields else array.astype(dtype)
    _set_array(content, name, new)


@corruption("types")
def _a_float_for_a_counter(content: RecordDict, rng: random.Random) -> None:
    name = _draw_array(content, rng, lambda a: a.dtype == "int64")
    _set_array(content, name, _arrays(content)[name].numpy() + 0.5)


@corruption("types", double="float64", object="object", nonsense="f4,O", none="")
def _said_type(content: RecordDict, rng: random.Random, dtype: str) -> None:
    _replace_fields(content, _draw_array(content, rng, _floating), dtype=dtype)


@corruption("types", pickle="pickle", torch="torch.Tensor", none="")
def _said_kind(content: RecordDict, rng: random.Random, stype: str) -> None:
    _replace_fields(content, _draw_array(content, rng), stype=stype)


# Values


@corruption("not finite", nan=math.nan, inf=math.inf, negative=-math.inf)
def _not_finite(content: RecordDict, rng: random.Random, value: float) -> None:
    name = _draw_array(content, rng, _floating)
    array = np.array(_arrays(content)[name].numpy())
    array.reshape(-1)[rng.randrange(array.size)] = value
    _set_array(content, name, array)


@corruption("not finite", nan=math.nan, inf=math.inf)
def _nowhere_finite(content: RecordDict, rng: random.Random, value: float) -> None:
    for name, array in [*_arrays(content).items()]:
        if _floating(array):
            _set_array(content, name, np.full(array.shape, value, np.float32))


@corruption("too far", thousand=1e3, negative=-1e6, huge=1e30)
def _far_away(content: RecordDict, rng: random.Random, step: float) -> None:
    name = _draw_array(content, rng, _floating)
    while "running" in name:  # the norm is of parameters
        name = _draw_array(content, rng, _floating)
    array = np.array(_arrays(content)[name].numpy())
    array.reshape(-1)[rng.randrange(array.size)] += np.float32(step)
    _set_array(content, name, array)


# The weight


@corruption(
    "weight",
    zero=0,
    negative_zero=-0.0,
    negative=-5,
    slightly=-1e-300,
    nan=math.nan,
    inf=math.inf,
    much=10**6,
    more=2**62,
    most=1.7e308,
    pair=[3, 4],
    none=[],
)
def _weight(content: RecordDict, rng: random.Random, weight: Any) -> None:
    _metrics(content)["num-examples"] = weight


@corruption("weight")
def _one_more_image(content: RecordDict, rng: random.Random) -> None:
    _metrics(content)["num-examples"] += 1  # type: ignore[operator]


@corruption("weight")
def _no_weight(content: RecordDict, rng: random.Random) -> None:
    del _metrics(content)["num-examples"]


# Sizes and bytes


@corruption("bytes", one=1, some=7, value=4, much=10**6)
def _bytes_added(content: RecordDict, rng: random.Random, number: int) -> None:
    name = _draw_array(content, rng)
    _replace_fields(
        content, name, data=_arrays(content)[name].data + rng.randbytes(number)
    )


@corruption("bytes")
def _cut_off(content: RecordDict, rng: random.Random) -> None:
    name = _draw_array(content, rng)
    data = _arrays(content)[name].data
    _replace_fields(content, name, data=data[: rng.randrange(len(data))])


@corruption("bytes")
def _nothing(content: RecordDict, rng: random.Random) -> None:
    _replace_fields(content, _draw_array(content, rng), data=b"")


@corruption("bytes")
def _noise(content: RecordDict, rng: random.Random) -> None:
    name = _draw_array(content, rng)
    _replace_fields(content, name, data=rng.randbytes(len(_arrays(content)[name].data)))


@corruption("bytes")
def _a_zip(content: RecordDict, rng: random.Random) -> None:
    name = _draw_array(content, rng)
    file = io.BytesIO()
    np.savez(file, _arrays(content)[name].numpy())
    _replace_fields(content, name, data=file.getvalue())


@corruption("bytes")
def _a_pickle(content: RecordDict, rng: random.Random) -> None:
    name = _draw_array(content, rng)
    file = io.BytesIO()
    array = _arrays(content)[name].numpy().astype(object)
    np.save(file, array, allow_pickle=True)
    _replace_fields(content, name, data=file.getvalue())


# Headers of arrays


@corruption("header")
def _a_flipped_bit(content: RecordDict, rng: random.Random) -> None:
    """In the magic bytes, the length or the text, but not in the padding."""
    name = _draw_array(content, rng)
    data = bytearray(_arrays(content)[name].data)
    place = rng.randrange(data.index(b"}") + 1)
    data[place] ^= 1 << rng.randrange(8)
    _replace_fields(content, name, data=bytes(data))


@corruption("header", first=0, letter=3, version=6, second=7)
def _other_magic(content: RecordDict, rng: random.Random, place: int) -> None:
    """Change one of the magic bytes and nothing else."""
    name = _draw_array(content, rng)
    data = bytearray(_arrays(content)[name].data)
    data[place] += 1
    _replace_fields(content, name, data=bytes(data))


@corruption(
    "header",
    huge=lambda text: text.replace("(", "(1099511627776, "),
    negative=lambda text: text.replace("(", "(-1, "),
    double=lambda text: text.replace("4", "8"),
    swapped=lambda text: text.replace("<", ">"),
    object=lambda text: text.replace("'<f4'", "'|O'").replace("'<i8'", "'|O'"),
    fields=lambda text: text.replace("'<", "[('x', '<").replace("', 'f", "')], 'f"),
    zeros=lambda text: text.replace("(", "(0"),
    python_2=lambda text: text.replace("(", "(1L, "),
    deep=lambda text: "(" * 9000,
    signs=lambda text: "-" * 50000 + "1",
    call=lambda text: "__import__('os')._exit(9)",
    no_end=lambda text: text[:-3],
    none=lambda text: "",
    padded=lambda text: text + " " * 20_000,
)
def _other_header(content: RecordDict, rng: random.Random, change: Any) -> None:
    name = _draw_array(content, rng, _floating)
    data = _arrays(content)[name].data
    end = 10 + int.from_bytes(data[8:10], "little")
    text = change(data[10:end].decode("latin1").rstrip()).encode("latin1") + b"\n"
    assert text != data[10:end]
    start = data[:8] + len(text).to_bytes(2, "little")
    _replace_fields(content, name, data=start + text + data[end:])


# Records


@corruption("records", arrays="arrays", metrics="metrics")
def _no_record(content: RecordDict, rng: random.Random, name: str) -> None:
    del content[name]


@corruption("records")
def _no_records(content: RecordDict, rng: random.Random) -> None:
    content.clear()


@corruption("records", arrays="arrays", metrics="metrics")
def _other_record_name(content: RecordDict, rng: random.Random, name: str) -> None:
    content[f"{name}-{rng.randrange(9)}"] = content.pop(name)


@corruption("records", arrays="arrays", metrics="metrics")
def _twice(content: RecordDict, rng: random.Random, name: str) -> None:
    content["more"] = content[name]


@corruption("records")
def _exchanged(content: RecordDict, rng: random.Random) -> None:
    arrays, metrics = content.pop("arrays"), content.pop("metrics")
    content["arrays"], content["metrics"] = metrics, arrays


@corruption("records")
def _metrics_as_config(content: RecordDict, rng: random.Random) -> None:
    content["metrics"] = ConfigRecord(dict(_metrics(content)))


# Metrics


@corruption("metrics", loss="train-loss", partition="partition-id", steps="steps")
def _no_metric(content: RecordDict, rng: random.Random, name: str) -> None:
    del _metrics(content)[name]


@corruption("metrics")
def _no_metrics(content: RecordDict, rng: random.Random) -> None:
    content["metrics"] = MetricRecord()


@corruption("metrics")
def _another_metric(content: RecordDict, rng: random.Random) -> None:
    _metrics(content)[f"metric-{rng.random()}"] = 1.0


@corruption("metrics", nan=math.nan, inf=math.inf, numbers=[0.5, 0.5], none=[])
def _metric(content: RecordDict, rng: random.Random, value: Any) -> None:
    _metrics(content)[rng.choice([*_metrics(content)])] = value


@corruption("metrics", next=1, before=-1, far=10**9, half=0.5)
def _other_partition(content: RecordDict, rng: random.Random, step: float) -> None:
    _metrics(content)["partition-id"] += step  # type: ignore[operator]


def _step_length(value: float) -> Corrupt:
    def corrupt(content: RecordDict, rng: random.Random) -> None:
        _metrics(content)["step-length"] = value

    return corrupt


# Of SCAFFOLD, which divides by it.
STEP_LENGTHS = [
    Corruption("step length", f"step_length:{value}", _step_length(value))
    for value in (0.0, -0.25, 1e-300)
]


class CorruptingGrid(InProcessGrid):
    """Clients train as usual; some of their replies are corrupted on the way.

    Parameters
    ----------
    plan : Mapping[tuple[int, int], Corruption]
        The corruption of the reply of a partition in a round; the others are unchanged.
    """

    def __init__(
        self,
        nodes: int,
        keys: dict[str, Any],
        plan: Mapping[tuple[int, int], Corruption],
    ) -> None:
        super().__init__(nodes, keys)
        self.plan = plan
        self.done: Counter[Corruption] = Counter()

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type != MessageType.TRAIN or reply.has_error():
            return reply
        server_round = message.content["config"]["server-round"]
        partition = reply.content.metric_records["metrics"]["partition-id"]
        corruption = self.plan.get((server_round, partition))
        if corruption is None:
            return reply
        before = reply.content.object_id  # a hash of the whole content
        corruption.corrupt(reply.content, random.Random(f"{server_round}/{partition}"))
        corrupted = over_the_wire(Message(reply.content, reply_to=message))
        assert corrupted.content.object_id != before, corruption.name
        self.done[corruption] += 1
        return corrupted
