"""Who measures the parts of a large job: this process, several processes, a Ray cluster, or SLURM.

1. `executor` has the protocol that all of them follow, and how a worker gets its model.
2. `local` is the default and needs nothing else. `on_ray` needs the extra `[ray]`, `on_slurm` the extra
   `[slurm]`; both are imported when they are asked for.
"""
