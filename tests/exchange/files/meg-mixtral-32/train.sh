GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 4096 --bf16
)
MOE_ARGS=(--num-experts 8 --moe-router-topk 2)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 256)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]}
