"""`explore`: a page to think with, live, from a small server on this machine.

The server runs in a thread. In a notebook the result shows the page in the output cell; elsewhere it says the
address. `stop` ends it, as does the end of the process.
"""

from __future__ import annotations

import html
import secrets
import socket
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError, PromptError

if TYPE_CHECKING:
    import uvicorn

    from circuits.live.desk import Desk

NEEDED: Final = ("starlette", "uvicorn", "sse_starlette")
FOLDER: Final = "explored"  # where answers are saved


class Explorer:
    """A live page; `address` is where it is, `stop()` ends it."""

    def __init__(self, server: uvicorn.Server, desk: Desk, listening: socket.socket, address: str) -> None:
        self.address = address
        self._server, self._desk, self._socket = server, desk, listening
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)
        self._thread.start()
        while not server.started and self._thread.is_alive():  # it answers from here on, and can be stopped
            time.sleep(0.01)

    def __repr__(self) -> str:
        state = "" if self._thread.is_alive() else ", stopped"
        return f"Explorer({self.address}{state})"

    def _repr_html_(self) -> str:
        address = html.escape(self.address, quote=True)
        frame = f'<iframe src="{address}" title="Explore" width="100%" height="900" frameborder="0"></iframe>'
        return f'{frame}<p>or open <a href="{address}" target="_blank">{address}</a></p>'

    def wait(self) -> None:
        """Until it is stopped, or interrupted by Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.2)

    def stop(self) -> None:
        """End the question that is under way, then the server."""
        self._desk.stop()
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def explore(
    model: Any = "mini", *, port: int = 0, browser: bool = False, folder: str | Path = FOLDER
) -> Explorer:
    """Ask a model which heads carry what, in the browser: type a prompt, click the key, click the query.

    The page is served on this machine alone, at an address that nobody can guess; `port=0` takes a free one.
    Answers that are saved go into `folder`. In a notebook the page appears in the output cell.

        >>> page = circuits.explore(model)
        >>> page.address.startswith("http://127.0.0.1:")
        True
        >>> page.stop()
    """
    needs_installing()
    from circuits.live.answers import Shelf
    from circuits.live.desk import Desk
    from circuits.models.load import as_model, load

    loaded = load(model) if isinstance(model, (str, Path)) else as_model(model)
    listening = _listen(port)
    opened = _serve(Shelf(loaded), Desk(), listening, Path(folder).absolute())
    if browser:
        import webbrowser

        webbrowser.open(opened.address)
    return opened


def needs_installing() -> None:
    """Say in one line what is missing, if anything is."""
    missing = [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]
    if missing:
        install = "pip install 'keyquery-circuits[explore]'"
        raise ModelError(f"explore needs {' and '.join(missing)}, not installed here: {install}")


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as why:
        listening.close()
        reason = getattr(why, "strerror", None) or why
        raise PromptError(
            f"cannot listen on port {port}: {reason}; give another --port, or 0 for a free one"
        ) from why
    return listening


def _serve(shelf: Any, desk: Desk, listening: socket.socket, folder: Path) -> Explorer:
    import uvicorn

    from circuits.live.server import Site, to_app

    token, port = secrets.token_urlsafe(24), listening.getsockname()[1]
    app = to_app(Site(shelf, desk, folder), token=token, port=port)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=128,
        timeout_graceful_shutdown=2,
    )
    return Explorer(uvicorn.Server(config), desk, listening, f"http://127.0.0.1:{port}/{token}/")
