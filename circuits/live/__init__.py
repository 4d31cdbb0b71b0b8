"""`explore`: the page of a circuit, live, from a small server on this machine alone.

1. `explorer` starts the server in a thread and stops it.
2. `server` serves the page and streams the events of jobs; `requests` are what the page may send.
3. `jobs` measures one question at a time; `answers` does the measuring.
"""

from circuits.live.explorer import Explorer, check_installed, explore

__all__ = ["Explorer", "check_installed", "explore"]
