"""Build the wheel and the sdist, install each into empty environments, and run the demo there: `make dist`.

1. `python -m build` packs the sdist and builds the wheel from it: what the wheel needs is in the sdist.
2. For every Python that is here, each of the two is installed twice: with the oldest versions that
   pyproject.toml allows, of every dependency, and with the newest that the package index has. Where the
   oldest has no wheel for a Python, the first version that has one takes its place.
3. torch is always 2.13.0: an index may serve a CPU build of one version alone, and any other version brings
   gigabytes of CUDA packages with it. Where even 2.13.0 does, that Python is skipped with a line that says
   so, and it is only checked that the index has a wheel of every dependency; `--cuda` installs it anyway.
4. The demo runs in an empty folder: a trace with its files, a ranking, and `circuits verify` of a circuit
   that the repository keeps, whose numbers must be the same to 0.001.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
MAIN = ("torch", "transformers", "transformer-lens", "networkx")
PYTHONS = ("3.11", "3.12", "3.13")
FIRST_WHEELS = {"3.13": {"numpy": "2.1", "pandas": "2.2.3", "pyarrow": "18"}}
KEPT = ROOT / "case_studies" / "opposite_of_large" / "mini"
TRACE = (
    "trace",
    'The opposite of "large" is "',
    "--key",
    "large",
    "--swap",
    "large=hot",
    "-o",
    "out",
)
DEMO = (TRACE, ("rank", "opposites", "-n", "4", "-o", "ranked"), ("verify", str(KEPT)))
_VERSIONS = (
    "import importlib.metadata as m, json; print(json.dumps([m.version(n) for n in {!r}]))"
)


class Failed(Exception):
    """A command and what it printed before it failed."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without this clone's modules and return what it prints; raise Failed if it fails."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        printed = (done.stdout + done.stderr).strip().splitlines()
        lines = [line for line in printed if not line.startswith("WARNING")][-15:]
        raise Failed("\n".join([" ".join(words), *lines]))
    return done.stdout


def build(folder: Path) -> list[Path]:
    """The wheel and the sdist; the wheel is built from the sdist."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return [next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))]


def oldest(python: str = PYTHONS[0]) -> list[str]:
    """Every dependency but torch at the lowest version that pyproject.toml allows and this Python has."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = []
    for requirement in map(Requirement, listed):
        (least,) = [each.version for each in requirement.specifier if each.operator == ">="]
        first = FIRST_WHEELS.get(python, {}).get(requirement.name, least)
        pins.append(f"{requirement.name}=={first}")
    return [pin for pin in pins if not pin.startswith("torch==")]


def new_environment(python: str, folder: Path) -> Path:
    """An empty environment with this Python; the path of its interpreter."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def pip(python: Path, *wanted: str | Path) -> str:
    return run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted
    )


def cuda_packages(python: str) -> list[str]:
    """The CUDA packages that torch brings with it for this Python."""
    with TemporaryDirectory() as room:
        empty, report = new_environment(python, Path(room) / "venv"), Path(room) / "report.json"
        pip(empty, "--dry-run", "--report", report, TORCH)
        names = [each["metadata"]["name"] for each in json.loads(report.read_text())["install"]]
    return [name for name in names if name.startswith(("nvidia", "cuda"))]


def check(python: str, artefact: Path, pins: Sequence[str]) -> list[str]:
    """Install into an empty environment, run the demo, and say which versions ran it."""
    with TemporaryDirectory() as room:
        own, place = new_environment(python, Path(room) / "venv"), Path(room) / "elsewhere"
        place.mkdir()
        pip(own, TORCH)
        pip(own, artefact, *pins)
        for command in DEMO:
            run(own, "-P", "-m", "circuits", *command, cwd=place)
        return json.loads(run(own, "-c", _VERSIONS.format(MAIN)))


def resolve(python: str, wheel: Path) -> str:
    """Whether the index has a wheel of every dependency for this Python, without installing any."""
    with TemporaryDirectory() as room:
        empty = new_environment(python, Path(room) / "venv")
        pip(empty, "--dry-run", "--only-binary", ":all:", TORCH, wheel)
    return "the index has a wheel of every dependency"


def lines(python: str, artefacts: Sequence[Path], *, cuda: bool) -> Iterator[str]:
    """One line for each environment with this Python, or one that says why there is none."""
    found = shutil.which(f"python{python}")
    if found is None or subprocess.run([found, "--version"], capture_output=True).returncode:
        yield f"python {python}: SKIPPED, there is no python{python} here"
        return
    brought = [] if cuda else cuda_packages(found)
    if brought:
        why = f"{TORCH} would bring {len(brought)} CUDA packages ({brought[0]}, …); --cuda installs them"
        yield f"python {python}: SKIPPED, {why}; {resolve(found, artefacts[0])}"
        return
    for artefact in artefacts:
        for name, pins in (("oldest", oldest(python)), ("newest", [])):
            start = time.monotonic()
            versions = dict(zip(MAIN, check(found, artefact, pins), strict=True))
            listed = ", ".join(f"{package} {version}" for package, version in versions.items())
            kind = "wheel" if artefact.suffix == ".whl" else "sdist"
            yield f"python {python}, {kind}, {name}: demo ran in {time.monotonic() - start:.0f} s ({listed})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="such as 3.11 3.12")
    parser.add_argument(
        "--cuda", action="store_true", help="install torch even if it brings CUDA packages"
    )
    parser.add_argument(
        "--keep", type=Path, default=ROOT / "dist", help="where wheel and sdist go"
    )
    options = parser.parse_args()
    shutil.rmtree(options.keep, ignore_errors=True)
    try:
        artefacts = build(options.keep)
        for artefact in artefacts:
            print(f"{artefact.name}: {artefact.stat().st_size / 2**20:.1f} MB", flush=True)
        for python in options.pythons:
            for line in lines(python, artefacts, cuda=options.cuda):
                print(line, flush=True)
    except Failed as why:
        sys.exit(f"failed: {why}")


if __name__ == "__main__":
    main()
