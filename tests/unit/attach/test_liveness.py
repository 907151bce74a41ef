"""The end of a sandbox is noticed by its namespace or by its process; what cannot be watched costs nobody a device."""

import errno
from dataclasses import replace

import pytest

from nri_rdma.attach.liveness import Ends, lives_by_process
from nri_rdma.attach.port import KernelError, Namespace, ProcessIdentity
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.model.request import Mode
from tests.fakes.kernel import FakeKernel, World
from tests.unit.attach.builders import POD_PATH, make_pod, record_of
from tests.unit.rigs.attachments import FakeProcesses, make_world, placed_on

ON_HOST = make_pod(path="", pid=4711)


class _Unopened(FakeKernel):
    """A kernel that opens no namespace."""

    error = errno.EMFILE

    def open_namespace(self, path: str) -> Namespace:
        raise KernelError(f"open {path}", self.error)


def _ends(world: World, watched: list[str] | None = None, processes: FakeProcesses | None = None) -> Ends:
    return Ends(FakeKernel(world), (watched if watched is not None else []).append, processes)


def _recorded(world: World, mode: Mode = Mode.EXCLUSIVE) -> SandboxRecord:
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    record = record_of(kernel, namespace, *placed_on(world, "rail0", mode=mode))
    namespace.close()
    return record


def test_a_namespace_that_is_still_the_same_is_opened_again_and_watched() -> None:
    world, watched = make_world(), list[str]()
    record, kernel = _recorded(world), FakeKernel(world)
    namespace = Ends(kernel, watched.append, None).open_again(record)
    assert namespace is not None
    assert (namespace.identity, watched) == (record.namespace, [POD_PATH])
    assert kernel.sockets == 0  # it is held open and no more, for as long as the pod lives
    assert _ends(world).is_there(record, namespace)
    namespace.close()
    assert world.held == 0


def test_of_a_pod_on_the_hosts_network_no_path_is_watched() -> None:
    world, watched = make_world(), list[str]()
    ends = _ends(world, watched)
    ends.watch(ON_HOST)
    assert ends.open_again(replace(_recorded(world, Mode.SHARED), pod=ON_HOST, namespace=None)) is None
    assert watched == []


def test_another_namespace_at_the_path_is_not_taken_for_the_pods() -> None:
    world = make_world()
    record = _recorded(world)
    world.remove_namespace(POD_PATH)
    world.add_namespace(POD_PATH)
    assert _ends(world).open_again(record) is None
    assert world.held == 0
    assert not _ends(world).is_there(record, None)


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ESTALE])
def test_a_path_without_a_namespace_is_the_end(error: int) -> None:
    world = make_world()
    record = _recorded(world)
    kernel = _Unopened(world)
    kernel.error = error
    ends = Ends(kernel, lambda _path: None, None)
    assert ends.open_again(record) is None
    assert not ends.can_be_opened(POD_PATH)


def test_a_namespace_that_cannot_be_seen_just_now_is_not_called_gone() -> None:
    world = make_world()
    record = _recorded(world)
    ends = Ends(_Unopened(world), lambda _path: None, None)
    for ask in (lambda: ends.open_again(record), lambda: ends.can_be_opened(POD_PATH)):
        with pytest.raises(KernelError, match="EMFILE"):
            ask()


def test_of_a_pod_that_nothing_was_moved_into_the_path_tells() -> None:
    world = make_world()
    record = replace(_recorded(world, Mode.SHARED), namespace=None)
    assert _ends(world).is_there(record, None)
    world.remove_namespace(POD_PATH)
    assert not _ends(world).is_there(record, None)


def test_a_pod_on_the_hosts_network_lives_as_long_as_its_process_with_its_start() -> None:
    world, processes = make_world(), FakeProcesses()
    processes.running[4711] = 100
    ends = _ends(world, processes=processes)
    process = ends.watch_process(ON_HOST)
    assert process == ProcessIdentity(pid=4711, start=100)
    record = replace(_recorded(world, Mode.SHARED), pod=ON_HOST, namespace=None, process=process)
    assert ends.is_there(record, None)
    processes.running[4711] = 200  # the number is another process's now
    assert not ends.is_there(record, None)


@pytest.mark.parametrize(
    ("path", "pid", "is_so"), [("", 4711, True), ("", 0, False), (POD_PATH, 4711, False), (POD_PATH, 0, False)]
)
def test_only_a_pod_on_the_hosts_network_lives_by_its_process(path: str, pid: int, is_so: bool) -> None:
    assert lives_by_process(make_pod(path=path, pid=pid)) == is_so


def test_a_process_that_cannot_be_watched_is_not_known_and_not_called_gone(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world()
    ends = Ends(FakeKernel(world), lambda _path: None, None)
    assert ends.watch_process(ON_HOST) is None
    process = ProcessIdentity(pid=4711, start=100)
    assert ends.is_there(replace(_recorded(world), pod=ON_HOST, namespace=None, process=process), None)
    assert [(it.getMessage(), vars(it)["pid"]) for it in caplog.records] == [("process is not watched", 4711)] * 2


def test_a_container_that_no_runtime_lists_is_refused_if_its_end_would_not_be_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Exhausted(FakeProcesses):
        def watch(self, pid: int) -> ProcessIdentity:
            raise OSError(errno.EMFILE, "too many open files")

        def watch_again(self, process: ProcessIdentity) -> None:
            self.watch(process.pid)

    ends = _ends(make_world(), processes=Exhausted())
    with pytest.raises(KernelError, match="watch process 4711: EMFILE"):
        ends.watch_process(replace(make_pod(pid=4711), is_listed=False))
    found = replace(make_pod(pid=4711), is_listed=False)
    record = replace(_recorded(make_world()), pod=found, process=ProcessIdentity(pid=4711, start=100))
    with pytest.raises(KernelError, match="watch process 4711: EMFILE"):  # after a restart
        ends.is_there(record, None)
    assert ends.watch_process(ON_HOST) is None  # the runtime's next list shows its end
    assert [it.getMessage() for it in caplog.records] == ["process is not watched"]


def test_a_pod_whose_process_was_never_seen_is_not_called_gone() -> None:
    world = make_world()
    record = replace(_recorded(world), pod=ON_HOST, namespace=None, process=None)
    assert _ends(world, processes=FakeProcesses()).is_there(record, None)


def test_the_process_of_a_pod_with_a_namespace_of_its_own_is_not_watched() -> None:
    world, processes = make_world(), FakeProcesses()
    processes.running[4711] = 100
    assert _ends(world, processes=processes).watch_process(make_pod(pid=4711)) is None
    assert processes.watched == []


def test_a_pod_without_a_namespace_has_no_path_that_could_be_watched() -> None:
    watched: list[str] = []
    _ends(make_world(), watched).watch(make_pod(path=""))
    assert watched == []


def test_a_watch_that_cannot_be_set_is_logged_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_path: str) -> None:
        raise OSError(errno.ENOSPC, "no more watches")

    world = make_world()
    namespace = Ends(FakeKernel(world), refuse, None).open_again(_recorded(world))
    assert namespace is not None
    namespace.close()
    assert [it.getMessage() for it in caplog.records] == ["namespace is not watched"]


# A container that no runtime lists

BOX = replace(make_pod(pid=4711), is_listed=False)


def test_a_container_that_no_runtime_lists_is_watched_by_its_process_and_not_by_its_path() -> None:
    world, watched, processes = make_world(), list[str](), FakeProcesses()
    processes.running[4711] = 100
    ends = _ends(world, watched, processes)
    ends.watch(BOX)
    assert ends.watch_process(BOX) == ProcessIdentity(pid=4711, start=100)
    assert watched == []


@pytest.mark.parametrize("mode", list(Mode))
def test_such_a_container_is_there_as_long_as_its_process_whatever_its_namespace_does(mode: Mode) -> None:
    world, processes = make_world(), FakeProcesses()
    processes.running[4711] = 100
    record = replace(_recorded(world, mode), pod=BOX, process=ProcessIdentity(pid=4711, start=100))
    if mode is Mode.SHARED:
        record = replace(record, namespace=None)
    ends = _ends(world, processes=processes)
    namespace = ends.open_again(record)
    assert ends.is_there(record, namespace)
    processes.running[4711] = 200
    assert not ends.is_there(record, namespace), "another process has its number now"
    del processes.running[4711]
    assert not ends.is_there(record, namespace)
    if namespace is not None:
        namespace.close()


def test_such_a_container_whose_namespace_is_another_one_now_is_not_there() -> None:
    world, processes = make_world(), FakeProcesses()
    processes.running[4711] = 100
    record = replace(_recorded(world), pod=BOX, process=ProcessIdentity(pid=4711, start=100))
    world.remove_namespace(POD_PATH)
    world.add_namespace(POD_PATH)
    ends = _ends(world, processes=processes)
    assert not ends.is_there(record, ends.open_again(record))
