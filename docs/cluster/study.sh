#!/bin/bash
# A study by 16 identical workers without submitit: PGPASSWORD=... sbatch study.sh
#SBATCH --job-name=tree-shape
#SBATCH --array=0-15
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
trap 'scontrol requeue $SLURM_JOB_ID' TERM # two minutes before its time is over: it goes on later
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # which srun does not take from sbatch since 22.05
srun python -m specexp.sweep experiments/tree_shape.yaml --storage postgresql://specexp@database/studies &
wait
