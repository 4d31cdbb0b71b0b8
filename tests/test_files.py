"""What killed and hurried processes leave: nothing that stays, nothing half, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from circuits.errors import FileError
from circuits.files import new_folder, write_folder

FILLS_AND_SLEEPS = """
import sys, time
from pathlib import Path
from circuits.files import write_folder

def fill(folder):
    (folder / "half.json").write_text("half")
    print("filling", flush=True)
    time.sleep(60)

write_folder(Path(sys.argv[1]), fill)
"""


def fill(folder: Path) -> None:
    (folder / "whole.json").write_text("whole")


def filling(folder: Path) -> subprocess.Popen[str]:
    """A process that is writing into a folder and does not come to an end."""
    command = [sys.executable, "-c", FILLS_AND_SLEEPS, str(folder)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    assert job.stdout.readline() == "filling\n"
    return job


def test_what_a_killed_command_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    with filling(tmp_path) as job:
        job.kill()
    assert [path.name.startswith(".unfinished-") for path in tmp_path.iterdir()] == [True]
    write_folder(tmp_path, fill)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.json"]


def test_what_a_living_command_is_writing_is_left_alone(tmp_path: Path) -> None:
    with filling(tmp_path) as job:
        write_folder(tmp_path, fill)
        names = sorted(path.name for path in tmp_path.iterdir())
        job.kill()
    assert len(names) == 2 and names[0].startswith(".unfinished-")


def test_folders_of_another_machine_or_name_are_left_alone(tmp_path: Path) -> None:
    for name in (".unfinished-elsewhere-1-abc", ".unfinished-mine", ".unfinished-"):
        (tmp_path / name).mkdir()
    write_folder(tmp_path, fill)
    assert len(list(tmp_path.glob(".unfinished-*"))) == 3


def test_a_new_folder_has_the_next_free_number(tmp_path: Path) -> None:
    names = [new_folder(tmp_path, "mini 5 8").name for _ in range(3)]
    assert names == ["mini-5-8", "mini-5-8-2", "mini-5-8-3"]
    (tmp_path / "mini-5-8-2").rmdir()
    assert [new_folder(tmp_path, "mini 5 8").name for _ in range(2)] == [
        "mini-5-8-2",
        "mini-5-8-4",
    ]


def test_many_folders_made_at_once_are_all_made(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_folder(tmp_path, "mini"), range(40)))
    assert len(set(made)) == 40 and all(folder.is_dir() for folder in made)


def test_a_place_where_no_folder_can_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    (tmp_path / "nowhere").write_text("")
    for parent in ("file", "link"):
        with pytest.raises(FileError, match="cannot make"):
            new_folder(tmp_path / parent, "mini")


# Ctrl-C


INTERRUPTS_ITSELF = """
import os, signal, sys, threading
from circuits.__main__ import run
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(float(sys.argv.pop(1)), os.kill, (os.getpid(), signal.SIGINT)).start()
run()
"""


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.05, 0.13, 0.4, 1.0])
def test_an_early_interrupt_is_one_line_and_no_traceback(seconds: float) -> None:
    """While the commands are imported, or torch, or the model."""
    command = [sys.executable, "-c", INTERRUPTS_ITSELF, str(seconds)]
    call = ["trace", "The large", "--key", "large"]
    ran = subprocess.run(
        [*command, *call],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert (ran.stdout, ran.stderr) == ("", "Error: interrupted\n")
    # Python ends by the signal itself where a library was interrupted in C; a shell says 130 of both.
    assert ran.returncode in (130, -signal.SIGINT)
