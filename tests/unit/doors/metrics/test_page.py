"""The page as Prometheus' own reader of its format has it, and the answers to other paths."""

from nri_rdma.doors.metrics.declared import METRICS, Measured, MetricKind
from nri_rdma.doors.metrics.http import PageRequest
from nri_rdma.doors.metrics.page import Pages
from nri_rdma.observe.durations import BOUNDS_S, Durations
from tests.rig.scrape import Page, read_page


def page(measured: Measured) -> Page:
    answer = Pages(lambda: measured, lambda: "").answer(PageRequest(path="/metrics"))
    assert answer.status == 200
    return read_page(answer.body.decode())


def test_values_are_on_the_page_with_their_labels() -> None:
    found = page(
        {
            "nri_rdma_build_info": {("1.0", "0123"): 1},
            "nri_rdma_runtime_synchronized": {(): True},
            "nri_rdma_refusals_total": {("NOT-READY",): 3},
        }
    )
    assert found.value("nri_rdma_build_info", version="1.0", revision="0123") == 1
    assert found.value("nri_rdma_runtime_synchronized") == 1
    assert found.value("nri_rdma_refusals_total", code="NOT-READY") == 3


def test_a_histogram_has_buckets_that_add_up() -> None:
    durations = Durations()
    for microseconds in (40, 60, 60, 3_000_000, 60_000_000):
        durations.note((("place", "done"), microseconds * 1000))
    found = page({"nri_rdma_step_duration_seconds": durations.histograms()})
    name, labels = "nri_rdma_step_duration_seconds", {"step": "place", "outcome": "done"}
    buckets = [found.value(f"{name}_bucket", le=le, **labels) for le in (*map(str, BOUNDS_S), "+Inf")]
    assert buckets == [1, *[3] * (len(BOUNDS_S) - 2), 4, 5]
    assert (found.value(f"{name}_count", **labels), found.value(f"{name}_sum", **labels)) == (5, 63.00016)


def test_a_name_that_would_break_the_text_does_not() -> None:
    assert page({"nri_rdma_pool_devices": {('a"\\\n',): 1}}).by("nri_rdma_pool_devices", "pool") == {'a"\\\n': 1}


def test_the_page_has_the_process_and_python_too() -> None:
    found = page({})
    assert found.value("process_start_time_seconds") > 1e9
    assert found.value("process_open_fds") > 0
    assert found.samples.keys() >= {"python_info", "python_gc_collections_total", "process_resident_memory_bytes"}


def test_names_follow_the_practice_of_prometheus() -> None:
    assert len({it.name for it in METRICS}) == len(METRICS)
    for it in METRICS:
        assert it.name.startswith("nri_rdma_")
        assert it.name.endswith("_total") == (it.kind is MetricKind.COUNTER), it.name
        assert it.name.endswith("_seconds") == (it.kind is MetricKind.HISTOGRAM), it.name
        assert it.text.endswith("."), it.name
    assert {label for it in METRICS for label in it.labels}.isdisjoint(
        {"pod", "namespace", "container", "device", "le"}
    )


def test_health_is_one_sentence() -> None:
    why = "the runtime is disconnected"
    answers = [Pages(dict, lambda why=why: why).answer(PageRequest(path="/healthz")) for why in ("", why)]  # type: ignore[misc]
    assert [(it.status, it.body) for it in answers] == [(200, b"ok\n"), (503, b"the runtime is disconnected\n")]


def test_another_path_says_which_there_are() -> None:
    for path in ("/", "/metrics/", "/../etc/passwd", "/debug/pprof"):
        answer = Pages(dict, str).answer(PageRequest(path=path))
        assert (answer.status, answer.body) == (404, b"there are /metrics and /healthz\n")
