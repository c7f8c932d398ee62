"""Workers for one study, recording or evaluation, on a Ray cluster, under SLURM or on this machine."""
