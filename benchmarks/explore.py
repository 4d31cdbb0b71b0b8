"""How long the live page takes from the click to the first carriers, beside a bare `trace` of the same.

    .venv/bin/python benchmarks/explore.py [MODEL …]

The click is the request that the page sends when Ask is clicked; the first carriers are those of the first
event that names any, which the page draws at once. Both are measured in turn and the medians are printed.
"""

from __future__ import annotations

import json
import sys
import time
from http.client import HTTPConnection
from statistics import median
from urllib.parse import urlsplit

import circuits

ROUNDS = 7
PROMPT, SWAP = 'The opposite of "large" is "', "hot"


def main() -> None:
    print(
        f"{'model':12}{'bare trace':>12}{'first carriers':>16}{'whole answer':>14}{'carriers/trace':>16}"
    )
    for name in sys.argv[1:] or ("mini", "smollm2"):
        model = circuits.load(name)
        key = circuits.to_prompt(model, PROMPT).position("large")
        query = len(circuits.to_prompt(model, PROMPT)) - 1
        bare, first, whole = [], [], []
        with circuits.explore(model) as page:
            question = {
                "model": model.name,
                "prompt": PROMPT,
                "key": key,
                "query": query,
                "group": "bench",
            }
            for number in range(ROUNDS + 1):
                since = time.perf_counter()
                circuits.trace(model, PROMPT, key=key, query=query, swap={key: SWAP})
                took = time.perf_counter() - since
                carriers, done = asked(page.address, question | {"swap": {key: SWAP}})
                if number:  # the first round warms up
                    bare.append(took)
                    first.append(carriers)
                    whole.append(done)
        times = [median(each) for each in (bare, first, whole)]
        print(
            f"{name:12}{times[0]:>10.3f} s{times[1]:>14.3f} s{times[2]:>12.3f} s{times[1] / times[0]:>15.2f}×"
        )


def asked(address: str, question: dict[str, object]) -> tuple[float, float]:
    """Seconds from the click to the first carriers, and to the whole answer."""
    place, since = urlsplit(address), time.perf_counter()
    headers = {"Origin": f"http://{place.netloc}", "Content-Type": "application/json"}
    sent = HTTPConnection(place.netloc)
    sent.request("POST", f"{place.path}ask", json.dumps(question), headers)
    job = json.loads(sent.getresponse().read())["job"]
    heard, carriers = HTTPConnection(place.netloc), 0.0
    heard.request("GET", f"{place.path}jobs/{job}")
    for line in heard.getresponse():
        text = line.decode()
        if not carriers and text.startswith("data: ") and '"path": [[' in text:
            carriers = time.perf_counter() - since
    return carriers, time.perf_counter() - since


if __name__ == "__main__":
    main()
