"""Runs the daemon if the runtime started `nri-rdma` as a plugin: without arguments or terminal, with three environment
variables and a connection.

Nobody reads the program's output then. Errors are logged. From the runtime's call Configure on, an error is also the
answer to the runtime, which writes it to its own log.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nri_rdma.attach.port import KernelError
from nri_rdma.commands.cli.errors import told
from nri_rdma.config.settings import Settings
from nri_rdma.config.start import load_to_start, start_troubles
from nri_rdma.errors import NriRdmaError
from nri_rdma.observe.logs import hold_logging, set_up_logging
from nri_rdma.text.annotations import asks

if TYPE_CHECKING:
    from nri_rdma.daemon.daemon import Daemon
    from nri_rdma.doors.nri.launched import Launched
    from nri_rdma.doors.nri.session import Answers

log = logging.getLogger(__name__)


def serve(environment: Mapping[str, str], program: str) -> int:
    """Serve the runtime until it closes the connection or SIGTERM arrives, and return the exit code. Pods keep their
    devices."""
    gc.disable()  # while the daemon is created: nothing of it is garbage
    process = _Process(environment)
    try:
        return process.serve(program)
    except (NriRdmaError, KernelError, OSError) as error:
        process.log_by_default()
        log.critical("ended", extra={"error": str(told(error))})
        return 1
    except Exception:  # there is no stderr for a traceback
        process.log_by_default()
        log.exception("ended by a bug")
        return 1
    finally:
        process.close()


class _Process:
    """The daemon in this process, which is created at the runtime's call Configure. Earlier log lines are kept in
    memory, because the settings in Configure say where they go."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._held: list[logging.LogRecord] | None = hold_logging()
        self._prefix = Settings().annotation_prefix
        self.daemon: Daemon | None = None

    def serve(self, program: str) -> int:
        """Run one session with the runtime and return the exit code.

        Raises SettingError if the inherited connection is not a socket. An error later in the session is logged, and
        the exit code is 1.
        """
        # Import before registering: the runtime waits 5 s for that, but only 2 s for the answer to Configure.
        from nri_rdma.daemon import daemon as _daemon  # noqa: F401
        from nri_rdma.doors.nri.identity import SOCKET_VARIABLE, identify
        from nri_rdma.doors.nri.launched import Launched, inherited_socket
        from nri_rdma.doors.nri.session import RegistrationError
        from nri_rdma.wire.error import WireError

        connection = inherited_socket(self._environment.get(SOCKET_VARIABLE, ""))
        identity = identify(name=None, index=None, environment=self._environment, program=program)
        log.info("started by the runtime", extra={"plugin": f"{identity.index}-{identity.name}"})
        try:
            Launched(connection, identity, self.start, self.asks).run()
        except (RegistrationError, WireError, OSError) as error:
            self.log_by_default()
            log.warning("session ended", extra={"error": str(error)})
            return 1
        self.log_by_default()
        log.info("the runtime closed the connection")
        return 0 if self.daemon is not None else 1

    def start(self, door: Launched, sent: str, by: float) -> Answers:
        """Create the daemon and return its handlers for the runtime's calls. Raises NriRdmaError if that fails; the
        error becomes the answer to Configure.

        `door` is the session with the runtime. `sent` is the configuration text in Configure. `by` is the deadline for
        the answer, in seconds of `time.monotonic`.
        """
        from nri_rdma.daemon.daemon import Daemon
        from nri_rdma.daemon.priority import prefer
        from nri_rdma.daemon.shortcomings import warn_of_variables

        try:
            loaded = load_to_start({}, self._environment, sent=sent)
            settings = loaded.settings
            self._prefix = settings.annotation_prefix
            troubles = start_troubles(loaded, self._log_as(settings))
            warn_of_variables(self._environment)
            prefer(settings.nice)
            self.daemon = Daemon(
                settings, door=door, by=by, reread=loaded.again, troubles=troubles, closed=loaded.closed
            )
            self.daemon.open()
        except (NriRdmaError, KernelError, OSError) as error:
            self.close()
            raise told(error) from error
        finally:
            self.log_by_default()  # without settings, write the log now: the runtime kills a plugin after an error
        return self.daemon.make_plugin(door.runtime_pid)

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod with these annotations asks for our devices. Until the settings have been read, the
        default annotation prefix counts."""
        return asks(annotations, self._prefix)

    def close(self) -> None:
        """End the daemon, if it was created."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.close()

    def log_by_default(self) -> None:
        """Log to the default destination, unless the settings have already chosen one."""
        if self._held is not None:
            self._log_as(Settings())

    def _log_as(self, settings: Settings) -> str:
        """Set up logging with these settings, and write the lines kept in memory. Returns why that failed; "" if it
        worked."""
        why = set_up_logging(
            settings.log_level, settings.log_format, settings.log_file, launched=True, fallback=settings.fallback_log
        )
        held, self._held = self._held or [], None
        for record in held:
            if logging.getLogger().isEnabledFor(record.levelno):
                logging.getLogger().handle(record)
        return why
