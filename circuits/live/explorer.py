"""Start the server of the live page in a thread, and stop it.

In a notebook the result shows the page in the output cell; elsewhere it prints the address. `stop` ends it,
as does the end of the process.
"""

from __future__ import annotations

import html
import secrets
import socket
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError, PromptError, check_whole
from circuits.files import to_path

if TYPE_CHECKING:
    import uvicorn

    from circuits.live.jobs import JobQueue

_NEEDED: Final = ("starlette", "uvicorn", "sse_starlette")
# Connections that are taken in at once. Where more come, those before them are read first, so that the door
# does not drop one whose request has arrived.
_AT_ONCE: Final = 8
_QUEUED: Final = 2048  # connections that the system keeps until they are taken in


class Explorer:
    """A live page; `address` is where it is, `stop()` ends it."""

    def __init__(
        self, server: uvicorn.Server, jobs: JobQueue, listening: socket.socket, address: str
    ) -> None:
        self.address = address
        self._server = server
        self._jobs = jobs
        self._socket = listening
        # Not `Thread.join`: Python 3.11 takes a thread for dead once Ctrl-C has interrupted the joining of it.
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="serving", daemon=True).start()
        while not server.started and not self._stopped.is_set():
            time.sleep(0.01)  # from here on the server answers, and can be stopped
        if not self._stopped.is_set():
            listening.listen(_QUEUED)  # uvicorn has one number for both, `backlog`

    def __repr__(self) -> str:
        state = ", stopped" if self._stopped.is_set() else ""
        return f"Explorer({self.address}{state})"

    def _repr_html_(self) -> str:
        address = html.escape(self.address, quote=True)
        frame = f'<iframe src="{address}" title="Explore" width="100%" height="900" frameborder="0"></iframe>'
        return f'{frame}<p>or open <a href="{address}" target="_blank">{address}</a></p>'

    def wait(self) -> None:
        """Wait until it is stopped, or interrupted by Ctrl-C."""
        while not self._stopped.wait(0.2):
            pass

    def stop(self) -> None:
        """End the question that is being measured, then the server."""
        self._jobs.stop()
        self._server.should_exit = True
        self._stopped.wait(10)
        self._socket.close()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._stopped.set()


def explore(
    model: Any = "mini",
    *,
    port: int = 0,
    browser: bool = False,
    folder: str | Path = "explored",
) -> Explorer:
    """Ask a model which heads carry what, in the browser: type a prompt, click the key, click the query.

    The page is served on this machine alone, at an address that nobody can guess; `port=0` takes a free one.
    Answers that are saved go into `folder`. In a notebook the page appears in the output cell.

        >>> page = circuits.explore(model)
        >>> page.address.startswith("http://127.0.0.1:")
        True
        >>> page.stop()
    """
    check_installed()
    import uvicorn

    from circuits.live.answers import Models
    from circuits.live.door import Door
    from circuits.live.jobs import JobQueue
    from circuits.live.server import Endpoints, to_app
    from circuits.models.load import as_model, load

    saved_in = to_path(folder).absolute()
    loaded = load(model) if isinstance(model, (str, Path)) else as_model(model)
    listening = _listen(port)
    own_port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    jobs = JobQueue()
    endpoints = Endpoints(Models(loaded), jobs, saved_in)
    door = Door()
    protocol: Any = door.protocol  # uvicorn calls it as it would call the class of a protocol
    config = uvicorn.Config(
        to_app(endpoints, token=token, port=own_port, door=door),
        http=protocol,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        backlog=_AT_ONCE,
        proxy_headers=False,  # a header must not say who the other end is: the door knows it by that
        timeout_graceful_shutdown=2,
    )
    address = f"http://127.0.0.1:{own_port}/{token}/"
    explorer = Explorer(uvicorn.Server(config), jobs, listening, address)
    if browser:
        import webbrowser

        webbrowser.open(address)
    return explorer


def check_installed() -> None:
    """Raise an error that names the packages of the extra that are missing, if any is."""
    missing = [name.replace("_", "-") for name in _NEEDED if find_spec(name) is None]
    if missing:
        install = "pip install '.[explore]' in a clone of circuits"
        raise ModelError(
            f"explore needs {' and '.join(missing)}, not installed here: {install}"
        )


def _listen(port: int) -> socket.socket:
    """A socket on this port of this machine alone."""
    check_whole("port", port)
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as why:
        listening.close()
        reason = getattr(why, "strerror", None) or why
        advice = "give another --port, or 0 for a free one"
        raise PromptError(f"cannot listen on port {port}: {reason}; {advice}") from why
    return listening
