"""What a container lacks: when all of it is done, nothing is lacking, and nobody has what was not given."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.cdi.grants import CdiGrant, Origin
from nri_rdma.cdi.meaning import CdiMeaning
from nri_rdma.decide.lacking import Attach, Cover, Evidence, Held, Need, lacking
from nri_rdma.model.request import DeviceRequest, Scope
from tests.unit.model.hardware import nic

NAMES = ("a/nic=0", "a/nic=1", "b/nic=0")
SHARES = (("rdma/nics", "nics-0"), ("rdma/nics", "nics-1"), ("rdma/hcas", "hcas-0"))
CONTAINERS = ("main", "other")
BY_ID = frozenset({"nics"})


def grant(name: str) -> CdiGrant:
    """A CDI device of the container "main" with a device of the node and no keys of ours."""
    return CdiGrant(
        container="main", name=name, origin=Origin.RUNTIME, meaning=CdiMeaning(name=name, devices=(nic(0),))
    )


def request(scope: Scope, name: str = "", shares: tuple[str, ...] = ()) -> DeviceRequest:
    pool = shares[0].partition("-")[0] if shares else "default"
    return DeviceRequest(name="r", where="w", cdi_device=name, shares=shares, pool=pool, scope=scope)


def test_a_cdi_device_without_an_attachment_is_a_need_although_its_spec_asks_for_nothing_now() -> None:
    """Its devices may be with an older sandbox of the pod: what it asks for is known when they are on the host."""
    evidence = Evidence(container="main", grants=(grant(NAMES[0]),))
    assert lacking(evidence, ()) == (Attach(grants=evidence.grants),)


def test_an_attach_that_runs_is_waited_for_by_whom_it_may_concern() -> None:
    """Which containers it covers is known when it is done."""
    held = Held(part="other", cdi_devices=frozenset({NAMES[0]}), requests=None)
    has = Evidence(container="main", grants=(grant(NAMES[0]),))
    withheld = Evidence(container="main", withheld=NAMES[:1])
    assert lacking(has, (held,)) == (Cover(part="other", name=NAMES[0]),)
    assert lacking(withheld, (held,)) == (Cover(part="other", name=NAMES[0], is_given=False),)


def test_a_share_that_stands_for_a_device_is_covered_and_another_is_attached_again() -> None:
    held = tuple(
        Held(part=share, cdi_devices=frozenset(), requests=(request(Scope(only=frozenset({"init"})), shares=(share,)),))
        for share in ("nics-0", "hcas-0")
    )
    evidence = Evidence(container="main", shares=frozenset({SHARES[0], SHARES[2]}))
    wanted = (Cover(part="nics-0", name="nics-0"), Attach(shares=(SHARES[2],)))
    assert set(lacking(evidence, held, BY_ID)) == set(wanted)


scopes = st.builds(lambda names: Scope(only=names), st.frozensets(st.sampled_from(CONTAINERS)))
requests = st.one_of(
    st.builds(request, scopes, name=st.sampled_from(NAMES)),
    st.builds(request, scopes, shares=st.sampled_from([(share,) for _, share in SHARES])),
)


@st.composite
def sandboxes(draw: st.DrawFn) -> tuple[Held, ...]:
    """What a sandbox has: each CDI device and each share has one attachment at most, as the engine makes them."""
    unique = draw(st.lists(requests, unique_by=lambda it: it.shares or it.cdi_device, max_size=6))
    return tuple(
        Held(part=str(number), cdi_devices=frozenset({it.cdi_device} - {""}), requests=(it,))
        for number, it in enumerate(unique)
    )


evidences = st.builds(
    lambda names, withheld, shares: Evidence(
        container="main",
        grants=tuple(map(grant, names)),
        withheld=tuple(name for name in withheld if name not in names),
        shares=shares,
    ),
    st.lists(st.sampled_from(NAMES), unique=True),
    st.lists(st.sampled_from(NAMES), unique=True),
    st.frozensets(st.sampled_from(SHARES)),
)


def served(held: tuple[Held, ...], need: Need) -> tuple[Held, ...]:
    """What a sandbox has once a need is served."""
    if isinstance(need, Cover):
        (holder,) = [it for it in held if it.part == need.part]
        covered = [it.covering("main", need.is_given) if it.is_for(need.name) else it for it in holder.requests or ()]
        return tuple(replace(it, requests=tuple(covered)) if it is holder else it for it in held)
    only_main = Scope(only=frozenset({"main"}))
    attached = [request(only_main, name=it.name) for it in need.grants]
    attached += [request(only_main, shares=(share,)) for _, share in need.shares]
    names = frozenset(it.name for it in need.grants)
    return (*held, Held(part=f"late {len(held)}", cdi_devices=names, requests=tuple(attached)))


@given(evidences, sandboxes())
def test_when_all_needs_are_served_nothing_is_lacking_and_nothing_withheld_is_given(
    evidence: Evidence, held: tuple[Held, ...]
) -> None:
    for need in lacking(evidence, held, BY_ID):
        held = served(held, need)
    assert lacking(evidence, held, BY_ID) == ()
    given_now = [it for holder in held for it in holder.requests or () if it.scope.covers("main")]
    assert {it.name for it in evidence.grants} <= {it.cdi_device for it in given_now}
    assert {share for _, share in evidence.shares} <= {share for it in given_now for share in it.shares}
    assert not set(evidence.withheld) & {it.cdi_device for it in given_now}


@given(evidences, sandboxes())
def test_what_a_container_has_already_is_left_alone(evidence: Evidence, held: tuple[Held, ...]) -> None:
    needs = lacking(evidence, held, BY_ID)
    attached = [it for holder in held for it in holder.requests or () if it.scope.covers("main")]
    has = {it.cdi_device for it in attached} | {share for it in attached for share in it.shares}
    asked = {need.name for need in needs if isinstance(need, Cover) and need.is_given}
    asked |= {it.name for need in needs if isinstance(need, Attach) for it in need.grants}
    asked |= {share for need in needs if isinstance(need, Attach) for _, share in need.shares}
    assert not asked & has
