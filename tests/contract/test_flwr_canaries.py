"""The private parts of Flower are as expected, and the app works without them.

A failing canary means that Flower has changed. ``flfa_app/_flwr_compat.py`` then uses
its fallbacks; adapt that file.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from flwr.app import Error
from flwr.common.constant import ErrorCode
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import http_grid, inmemory_grid

from flfa_app import _flwr_compat
from tests.unit.strategies.fakes import FakeGrid

PRIVATE = ("httpx", "flwr.common.constant", "flwr.common.config")


def simulation_grid() -> Any:
    """Flower's own grid of a simulation, over its own empty state."""
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    grid: Any = inmemory_grid.InMemoryGrid.__new__(inmemory_grid.InMemoryGrid)
    grid.state = factory.state()
    return grid


def test_a_simulation_is_recognised_by_the_class_of_its_grid() -> None:
    assert _flwr_compat.is_simulation(simulation_grid())
    assert not _flwr_compat.is_simulation(FakeGrid(1, lambda message: None))


def test_the_state_of_a_simulation_is_the_expected_one() -> None:
    grid = simulation_grid()
    assert _flwr_compat.dispatch_in_sending_order(grid)
    assert grid.state.get_message_ins(node_id=1, limit=1) == []


def test_grid_and_engine_call_the_replaced_functions() -> None:
    """Otherwise the order of the messages would silently stay Flower's."""
    assert "self.state.store_message_ins(msg)" in inspect.getsource(inmemory_grid)
    call = "state.get_message_ins(node_id=node_id, limit=1)"
    assert call in inspect.getsource(vce_api)
    assert "dst_node_id" in inspect.getsource(vce_api)


def test_the_code_of_an_expired_message() -> None:
    assert _flwr_compat.is_expired(Error(ErrorCode.MESSAGE_UNAVAILABLE, ""))
    assert not _flwr_compat.is_expired(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ""))


def test_real_nodes_are_reached_with_httpx() -> None:
    assert http_grid.httpx is httpx
    assert issubclass(httpx.ConnectError, _flwr_compat.CONNECTION_ERRORS)
    assert issubclass(ConnectionResetError, _flwr_compat.CONNECTION_ERRORS)


def test_overrides_are_parsed_as_flwr_run_does(tmp_path: Path) -> None:
    parse = _flwr_compat.parse_config_overrides
    assert parse("a=1 b='x y' c=true") == {"a": 1, "b": "x y", "c": True}
    (file := tmp_path / "x.toml").write_text("a = 1\n[table]\nb = 2.5\n")
    assert parse(str(file)) == {"a": 1, "table.b": 2.5}
    assert parse("no pairs") == {}
    with pytest.raises(ValueError, match="invalid format"):
        parse("a=b")
    file.write_text("a = ")
    with pytest.raises(ValueError, match="Invalid value"):
        parse(str(file))


@pytest.fixture
def another_flower(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The compat file as it is imported beside a Flower without the private parts."""
    plain_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in PRIVATE:
            raise ImportError(name)
        return plain_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert _flwr_compat.__file__
    spec = importlib.util.spec_from_file_location("other_compat", _flwr_compat.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "other_compat" not in sys.modules
    return module


def test_without_the_private_parts_the_fallbacks_are_used(
    another_flower: ModuleType, tmp_path: Path
) -> None:
    assert (OSError,) == another_flower.CONNECTION_ERRORS
    assert another_flower.is_expired(Error(ErrorCode.MESSAGE_UNAVAILABLE, ""))
    (file := tmp_path / "x.toml").write_text("a = 1\n")
    assert another_flower.parse_config_overrides(str(file)) == {"a": 1}
    with pytest.raises(ValueError, match=r"use a \.toml file"):
        another_flower.parse_config_overrides("a=1")


@pytest.mark.parametrize("missing", ["store_message_ins", "get_message_ins", "class"])
def test_an_unknown_state_is_left_unchanged(missing: str) -> None:
    methods = {"store_message_ins": lambda: None, "get_message_ins": lambda: None}
    methods.pop(missing, None)
    name = "LinkState" if missing == "class" else "InMemoryLinkState"
    grid = simulation_grid()
    grid.state = type(name, (), methods)()
    assert not _flwr_compat.dispatch_in_sending_order(grid)
    assert vars(grid.state) == {}
