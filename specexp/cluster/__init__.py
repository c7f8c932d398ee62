"""Workers of one study, recording or evaluation on many machines: a Ray cluster, SLURM, or this machine."""
