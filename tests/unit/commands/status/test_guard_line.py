"""`status` tells of the guard from both sides: what the hook has asked, and what the runtime's configuration says."""

from __future__ import annotations

from typing import Any

from nri_rdma.commands.status.guard_line import guard_facts, lacking_guard
from nri_rdma.host.guard_setups import Setup

RUNC = Setup(handler="containerd's runc", fault="")
BARE = Setup(handler="containerd's nvidia", fault="no base_runtime_spec")
NEVER: dict[str, Any] = {"active": "unknown", "warning": "w", "asked": 0, "refused": 0, "last": 0.0, "unguarded": []}
EARLIER = NEVER | {"active": "createRuntime hook", "last": 390.0}
ASKED = EARLIER | {"asked": 3, "refused": 1}


def lines(guard: dict[str, Any], *setups: Setup) -> list[tuple[str, str]]:
    return list(guard_facts(guard, setups, 1100.0))


def test_a_guard_that_was_just_set_up_is_there_before_any_container_asks() -> None:
    words = "createRuntime hook for containerd's runc: it has asked about no container yet"
    assert lines(NEVER, RUNC) == [("Guard", words)]


def test_a_guard_that_was_taken_out_is_none_although_a_hook_has_asked() -> None:
    gone = Setup(handler="containerd's runc", fault="no base_runtime_spec")
    none = "WARNING, none: while this daemon is dead, pods start without their devices (containerd's runc: "
    assert lines(EARLIER, gone) == [
        ("Guard", f"{none}no base_runtime_spec)"),
        (
            "",
            "earlier a createRuntime hook was there: it has asked about no container since this daemon started, last "
            "11 min 50 s ago",
        ),
    ]
    assert lines(NEVER, gone) == [("Guard", f"{none}no base_runtime_spec)")]


def test_a_handler_without_guard_is_a_warning_beside_one_with() -> None:
    assert lines(ASKED, RUNC, BARE) == [
        (
            "Guard",
            "createRuntime hook for containerd's runc: asked about 3 containers (1 refused), last 11 min 50 s ago",
        ),
        ("", "WARNING, not guarded: containerd's nvidia: no base_runtime_spec"),
    ]


def test_where_no_configuration_can_be_seen_only_a_hook_that_asks_shows_a_guard() -> None:
    assert lines(ASKED) == [
        ("Guard", "createRuntime hook: asked about 3 containers (1 refused), last 11 min 50 s ago"),
        ("", "WARNING, not known: no runtime says which handlers have it; `nri-rdma doctor` on the host reads more"),
    ]
    hidden = Setup(handler="containerd's runc", fault="/base.json cannot be seen", is_known=False)
    assert lines(ASKED, hidden)[1:] == [("", "WARNING, not known: containerd's runc: /base.json cannot be seen")]
    for guard in (NEVER, EARLIER, {"active": "none", "warning": "of an older daemon"}):
        ((name, words),) = lines(guard)
        assert (name, words.startswith("WARNING, not known: "), "doctor" in words) == ("Guard", True, True)


def test_a_resource_is_a_guard_for_containers_that_have_it() -> None:
    told = list(guard_facts(NEVER, [BARE], 1100.0, "a.example/guard"))
    assert told == [
        ("Guard", "hook of containers with the resource a.example/guard: it has asked about no container yet"),
        ("", "WARNING, containers without it are not guarded: containerd's nvidia: no base_runtime_spec"),
    ]
    assert list(guard_facts(NEVER, [RUNC], 1100.0, "a.example/guard")) == lines(NEVER, RUNC)


def test_containers_that_started_unasked_are_named_in_any_case() -> None:
    unasked = ASKED | {"warning": "some started unasked", "unguarded": ["a/b, container c"]}
    assert lines(unasked, RUNC)[-1] == ("", "WARNING, some started unasked: a/b, container c")


def test_where_a_guard_is_required_each_handler_needs_one_or_the_resource_is_it() -> None:
    hidden = Setup(handler="containerd's kata", fault="/base.json cannot be seen", is_known=False)
    broken = Setup(handler="CRI-O", fault="/hook cannot be run", blocks=True)
    assert list(lacking_guard([RUNC], (), "")) == []
    assert list(lacking_guard([RUNC, BARE, hidden, broken], (), "")) == [
        "containerd's nvidia has no guard, so pods may start without their devices: no base_runtime_spec",
        "it is not known whether containerd's kata has the guard: /base.json cannot be seen",
        "no container of CRI-O starts: /hook cannot be run",
    ]
    assert list(lacking_guard([RUNC, BARE, hidden], ("nvidia", "kata"), "")) == []
    assert list(lacking_guard([], (), "")) == [
        "it is not known which handlers have the guard: no runtime answers, and no configuration of one is here"
    ]
    assert list(lacking_guard([BARE], (), "a.example/guard")) == []
