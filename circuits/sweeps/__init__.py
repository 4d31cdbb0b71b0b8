"""Many prompts, one line of a jsonl file each: measured in batches, resumable, by any number of processes.

1. `lines` reads the file, where every line is a question with its metadata or a line with its error, and
   measures questions of one shape together.
2. `store` keeps results as Parquet shards, beside a manifest, and says which process may write which lines.
3. `sweep` is the verb; `results` reads a sweep back.
"""

from typing import Final

BATCH: Final = 64  # pairs that are run together, at most
