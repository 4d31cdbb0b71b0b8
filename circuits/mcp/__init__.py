"""`circuits mcp`: the questions of this package as tools for agents, over the Model Context Protocol.

1. `calls` are the arguments of each tool; `folder` is the one place whose files the tools may read and write.
2. `tools` loads, measures and saves; `answers` puts verdict, controls and limits beside what was measured.
3. `server` speaks the protocol: it lists the tools, runs one measurement at a time, reports progress, cancels.
"""

from circuits.mcp.installed import check_installed

__all__ = ["check_installed"]
