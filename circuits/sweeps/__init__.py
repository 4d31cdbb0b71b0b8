"""Many prompts, one line of a jsonl file each: measured in shards, resumable, by any number of workers.

1. `lines` reads the file and cuts it into shards; every line is a question with its metadata, or an error.
2. `rows` measures the lines of a shard, questions of one shape together.
3. `store` keeps shards as a Parquet data set, beside a manifest.
4. `sweep` is the verb; `results` reads a sweep back; `plan` says beforehand what a sweep will take.
"""

from typing import Final

BATCH: Final = 64  # pairs that are run together, at most
