"""The generator of requests: it has every key that the schema has."""

import pytest

from tests.unit.attach.grammar import Abilities, covering, keys_of, keys_of_schema, read

CAN = Abilities(features=("tso",), private_flags=("legacy-rx",))


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_generated_requests_have_every_key_of_the_schema(devices: int) -> None:
    """Whoever adds a key to requests adds it to the generator, and so to the tests that have every operation fail."""
    asked = covering(devices, CAN)
    keys = {key for it in asked for key in keys_of(it)}
    assert keys_of_schema() - keys == set(), "write values for these keys into tests/unit/attach/grammar.py"
    assert {key for key in keys if key.startswith("routes.type=")} == {
        f"routes.type={it}" for it in ("unicast", "blackhole", "unreachable", "prohibit")
    }


def test_generated_requests_are_read() -> None:
    for devices in (1, 2, 3):
        for asked in covering(devices, CAN):
            assert read(asked).count == devices


def test_the_keys_of_a_request_are_found_wherever_they_are() -> None:
    asked = {
        "count": 1,
        "routes": [{"type": "blackhole"}, {"multipath": [{"weight": 1}]}],
        "ethtool": {"features": {"a": True}},
    }
    assert keys_of(asked) == {
        *("count", "routes", "routes.type", "routes.type=blackhole", "routes.multipath", "routes.multipath.weight"),
        *("ethtool", "ethtool.features"),
    }
