#SBATCH --ntasks-per-node=1
#SBATCH --nodes=4
#SBATCH --gres=gpu:4
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="accelerate launch \
    --num_processes $((SLURM_NNODES * 4)) \
    --num_machines $SLURM_NNODES \
    --multi_gpu \
    --mixed_precision fp16 \
    --rdzv_backend c10d \
    "
export SCRIPT_ARGS=" \
    --output_dir out \
    "
export CMD="$LAUNCHER complete_nlp_example.py $SCRIPT_ARGS"
srun $CMD
