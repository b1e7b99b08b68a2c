"""Scripts are read as a shell would read them, as far as nothing has to be run."""

import pytest

from shardwise.exchange.shell import read_script


def facts(text):
    return {fact.key: fact.value for document in read_script(text, file="run.sh") for fact in document.facts}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("N=8\ntorchrun --nproc_per_node $N train.py --tp 2", "torchrun.nproc_per_node", 8),
        ("N=${GPUS:-4}\ntorchrun --nproc_per_node=${N} t.py --a 1", "torchrun.nproc_per_node", 4),
        (': "${A:=3}"\npython t.py --a $A', "a", 3),
        ("A=2\nB=$((A * 4 + 1))\npython t.py --b $B", "b", 9),
        ("ARGS=(\n  --tp 2\n  --pp 4\n)\npython t.py ${ARGS[@]}", "pp", 4),
        ('ARGS="--tp 2 "\nARGS+="--pp 8"\npython t.py $ARGS', "pp", 8),
        ("#SBATCH --nodes=4\npython t.py --n $SLURM_NNODES", "n", 4),
        ("#SBATCH -N 4\nsrun -n2 python t.py --n 1", "srun.ntasks", 2),
        ('srun bash -c "RANK=\\$SLURM_PROCID python t.py --n 5"', "n", 5),
        ("python -m torch.distributed.run --nnodes 2 t.py --n 5", "torchrun.nnodes", 2),
        ("A=1 B=2 torchrun --nproc-per-node gpu t.py --n 5 # no", "torchrun.nproc_per_node", "gpu"),
        ("python t.py model.size=7 +train.n=3", "train.n", 3),
        ("python t.py --flag --n -1", "n", -1),
        ("python t.py --n $UNKNOWN", "n", "$UNKNOWN"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1", "env.CUDA_DEVICE_MAX_CONNECTIONS", 1),
        ('A=()\nA+=("--fp8 hybrid" --data "a b")\npython t.py ${A[@]}', "fp8", "hybrid"),
        ("A=(\n --tp 2\n # it's off: --pp 2\n --cp 4\n)\npython t.py ${A[@]}", "cp", 4),
        ('srun bash -lc "\nset -e\ncd here\npython t.py --n 5\n"', "n", 5),
        ("srun sh -x -c 'python t.py --n 5'", "n", 5),
        ("uv run --no-sync --with x torchrun --nproc_per_node 8 t.py", "torchrun.nproc_per_node", 8),
        ('P=()\n$VENV "${P[@]}" python -m torch.distributed.run --nnodes 2 t.py', "torchrun.nnodes", 2),
        ("if true; then python t.py --n 5; fi", "n", 5),
        ("srun -l ./env/bin/torchrun --nproc_per_node 8 t.py", "torchrun.nproc_per_node", 8),
        ("/usr/bin/python3.11 t.py --n 5", "n", 5),
        ('declare -a A=(--a 1 --n 5)\npython t.py "${A[@]}"', "n", 5),
        (
            "clear; srun --jobid $ID bash -c 'torchrun --nproc_per_node 8 t.py; date' 2>&1 | tee log",
            "torchrun.nproc_per_node",
            8,
        ),
        ("python -m accelerate.commands.launch --num_processes 4 t.py", "accelerate.num_processes", 4),
        ("python t.py --step gpt model.seq_length=7", "model.seq_length", 7),
        ("$PYTHON -m torch.distributed.run --nnodes 2 t.py", "torchrun.nnodes", 2),
        ('CMD="deepspeed --num_gpus 4 t.py --n 5"\neval $CMD', "deepspeed.num_gpus", 4),
        ("deepspeed --num_gpus=4 --bind_cores_to_rank t.py --n 5", "n", 5),
        ("N=${1:-8}\ntorchrun --nproc_per_node $N t.py", "torchrun.nproc_per_node", 8),
        ('N=8;\nwhile [[ $# -gt 0 ]]; do\ncase $1 in\n--n) N="$2";;\nesac\ndone\npython t.py --n $N', "n", 8),
        ('RUN=${RUN:-"python -m torch.distributed.run"}\n$RUN --nnodes 2 t.py', "torchrun.nnodes", 2),
        ('A="x:True" \\\ntorchrun --nnodes 2 t.py', "torchrun.nnodes", 2),
        ("N=$((2 * ${GPUS}))\npython t.py --n $N", "n", "$N"),
        ("read -r -d '' A <<EOF\nmy.train --n 5 \\\n --m 6\nEOF\ndeepspeed --module $A", "n", 5),
        ("sbatch --nodes=2 -n 16 --gres gpu:8 job.sh --n 5", "sbatch.ntasks", 16),
        ("sbatch -N2 job.sh --n 5", "n", 5),
        ("sbatch --nodes 2 --wrap 'srun -n 16 python t.py --n $SLURM_NNODES'", "n", 2),
        ("NPROC_PER_NODE=8 llamafactory-cli train --cutoff_len 512", "torchrun.nnodes", 1),
        ("export NNODES=2 NPROC_PER_NODE=8\nllamafactory-cli train --cutoff_len 512", "torchrun.nnodes", 2),
        (
            "NPROC_PER_NODE=8 llamafactory-cli train --cutoff_len 512\ntorchrun --nnodes $NNODES t.py",
            "torchrun.nnodes",
            "$NNODES",
        ),
        ("A=1\npython t.py ${A:+--n ${B:-5} --m 6}", "n", 5),
        ("NGPU=4 CONFIG_FILE=a.toml ./run_train.sh --training.seq_len 512", "torchrun.nproc_per_node", 4),
        ("NGPU=4 CONFIG_FILE=a.toml ./run_train.sh --training.seq_len 512", "job.config_file", "a.toml"),
    ],
)
def test_a_script_says(text, key, value):
    assert facts(text)[key] == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('M=8B\nif [ "$M" == "8B" ]; then\nN=1\nelif [ $M = 70B ]; then\nN=2\nelse\nN=3\nfi', 1),
        ('M=70B\nif [ "$M" == "8B" ]; then\nN=1\nelif [ $M = 70B ]; then\nN=2\nelse\nN=3\nfi', 2),
        ("M=1T\nif [[ $M == 8* ]]; then\nN=1\nelse\nif [ 2 -gt 3 ]; then N=2; else N=3; fi\nfi", 3),
        ("M=7B\ncase $M in\n8B | 7B)\nN=1 ;;\n*)\nN=2 ;;\nesac", 1),
        ('M=7B\ncase "$M" in\n"8B") N=1 ;;\n*) N=2 ;;\nesac', 2),
        ('N=1\nif [[ -z "" && -n $UNKNOWN ]]; then\nN=2\nfi', 2),
        ("D=0\nif [ $UNKNOWN -eq 0 ]; then\nD=1\nfi\nif [ $D -eq 1 ]; then\nN=1\nelse\nN=2\nfi", 2),
        ("N=1\nif [ 1 -eq 2 ]; then\nN=$(date)\npython other.py --n 7\nfi", 1),
    ],
)
def test_of_the_branches_of_a_script_those_are_read_that_may_run(text, value):
    """What only who runs the script knows decides nothing: then the last branch that may run is read, as before."""
    assert facts(f"{text}\npython t.py --n $N")["n"] == value


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        ("N=1\n{if} N=2; fi", {"--n"}),
        ("N=1\n{if} N=1; fi", set()),
        ("N=1\n{if} N=2; fi\nN=3", set()),
        ("N=1\nif [ 1 = 1 ]; then N=2; fi", set()),
        ("M=1\n{if} M=2; fi\nN=$((M * 4))", {"--n"}),
        ('MORE="--m 6"\n{if} MORE="$MORE --k 7"; fi', {"--k"}),
        ("MORE=(--m 6)\n{if}\nMORE+=(--k 7 --f)\nfi\nMORE+=(--j)", {"--k", "--f"}),
        ("{if} RUN='torchrun --nnodes 2'; fi", {"--nnodes", "torchrun"}),
        ("{if} python t.py --i 1; fi", {"--i"}),
        ("{if}\nexport WORLD_SIZE=8\nfi", {"WORLD_SIZE"}),
        ("M=x\n{if} M=; fi\nif [ -z $M ]; then N=2; fi", {"--n"}),
        ("{if} M=x; fi\ncase $M in\nx) N=2 ;;\nesac", {"--n"}),
    ],
)
@pytest.mark.parametrize("program", ["$RUN python t.py $MORE --n $N", 'bash -c "$RUN python t.py --n $N $MORE"'])
def test_what_a_branch_says_that_may_not_run_is_marked(text, doubtful, program):
    text = f"{text.replace('{if}', 'if [ $1 = x ]; then')}\n{program}"
    documents = read_script(text, file="run.sh")
    places = {fact.place.removeprefix("run.sh:") for document in documents for fact in document.facts}
    assert {one.split()[0] for one in places if one.endswith(" in a branch that may not run")} == doubtful
    assert not any("\0" in repr(document) for document in documents)


@pytest.mark.parametrize(
    "text",
    [
        "A=$B\nB=$A\npython t.py --n $A",
        "A='" + "x" * 300_000,
        "$(( 1 / 0 ))\npython t.py --n $((8/0))",
        "python t.py " + "--n 1 " * 30_000,
        "A=$A$A$A$A\n" * 50 + "python t.py --n $A",
        'bash -c "bash -c \\"bash -c x\\""',
        "`$(((((",
        "fi\nesac\nelse\nif\ncase\nif [\nelif [ ]; then",
        "cat > a.json <<EOF\n" + "{" * 3_000,
        "case x in\n" + "a|" * 9_000 + ")",
    ],
)
def test_no_script_hangs_or_fails(text):
    read_script(text, file="run.sh")


@pytest.mark.parametrize(
    "text",
    [
        'if [ -z "$A" ]; then echo --none; fi',
        "mkdir -p out && rm -rf old; git clone --depth 1 x",
        "N=$(scontrol show hostnames | head -n 1)",
        'ADDRESS=$(python3 -c "print(1, 2.5)")',
        "cat > hosts <<EOT\npython t.py --n 1\nEOT",
    ],
)
def test_what_starts_no_training_says_nothing(text):
    assert facts(text) == {}
