"""Many prompts, one line of a jsonl file each: measured in batches, resumable, by as many processes as there are.

1. `lines` reads the file: every line is a question with its metadata, or a line with its error.
2. `batches` puts questions of one shape together and measures them; `greedy` finds the carriers of
   each pair of a batch, `branches` measures them.
3. `store` keeps results as Parquet shards that appear whole or not at all, beside a manifest; `lock` says who may write.
4. `work` is the verb `sweep`, `opened` reads a sweep back, `command` is `circuits sweep`.
"""

from __future__ import annotations

from typing import Final

BATCH: Final = 64  # pairs that are run together, at most
