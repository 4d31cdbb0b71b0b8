"""Explore: the page of a circuit, live. `explore` starts a small server on this machine alone.

1. `requests` says what may be asked, and refuses the rest in one line.
2. `desk` measures one question at a time, in the order in which they came; `answers` does the measuring.
3. `server` serves the page and tells what is measured as it is measured; `explore` starts and stops it.
"""
