# Two commands on a fresh machine: `make demo` and `make test`. Both set themselves up in .venv.
# Needed beforehand: Python 3.11 or newer, make, a package index.

BIN := .venv/bin
DEMO_MODEL := examples/llama-3.1-70b/config.json
DEMO_CLUSTER := 64xh100-sxm
# Tests start many processes, and each would compile the package and its tests again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help demo test runs targets slurm kills fuzz families slow same mutants check lint types layers bench docs format clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

demo:  ## plan Llama-3.1-70B on 64 H100; then plan a small model for two CPU cores, train it, and compare
	@scripts/venv.sh train
	@$(BIN)/shardwise plan $(DEMO_MODEL) $(DEMO_CLUSTER) --seq-len 8192 --global-batch-size 512 --tokens 1T
	@echo; echo "== the loop closed on this machine: plan, train in two processes, predicted beside measured"; echo
	@mkdir -p runs
	@$(BIN)/shardwise plan examples/tiny-llama/config.json examples/two-cores.toml --seq-len 256 --global-batch-size 8 \
	  --precision fp32 --no-compile --top 3 --out runs/demo-plan.json --force
	@$(BIN)/shardwise train runs/demo-plan.json --device cpu --steps 20
	@echo; echo "Next: $(BIN)/shardwise lab lists seven questions that real runs on this machine answer."

test:  ## the tests that every change has to pass
	@scripts/venv.sh dev
	@$(BIN)/pytest $(PYTEST_ARGS)

runs:  ## real runs in several processes: the story, a folder's life, full disks, recomputation, layouts that combine axes, traces; the laugh test (more than thirteen minutes)
	@scripts/venv.sh dev
	@$(BIN)/pytest $(PYTEST_ARGS) -m "runs and not kills and not slow"

TOOLS := .venv/targets
$(TOOLS)/.stamp: constraints/targets.txt
	@scripts/venv.sh dev
	@rm -rf $(TOOLS)
	@DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(TOOLS) -r $<
	@touch $@

targets: $(TOOLS)/.stamp  ## torchtitan, DeepSpeed, Accelerate and TRL read what is exported for them; MEGATRON_LM=CHECKOUT adds Megatron-LM
	@scripts/venv.sh dev
	@PYTHONPATH=$(CURDIR)/$(TOOLS) $(BIN)/pytest -n 0 -m targets tests/exchange/test_targets.py tests/exchange/test_exported_runs.py

slurm:  ## a Slurm controller and node on this machine, from Debian's packages, run the sbatch of a plan and requeue it (six minutes)
	@scripts/venv.sh dev
	@scripts/slurm.sh
	@$(BIN)/pytest -n 0 -m slurm tests/launch/test_slurm.py

kills:  ## forty processes of real runs are killed, and nothing is left behind (ten minutes)
	@scripts/venv.sh dev
	@$(BIN)/pytest -n 3 -m kills tests/launch/test_kills.py

fuzz:  ## twenty thousand damaged files, and no traceback (five minutes)
	@scripts/venv.sh dev
	@$(BIN)/pytest -n 2 -m fuzz tests/test_reader_fuzz.py

slow:  ## the tests that take minutes: five labs with real runs, long schedules
	@scripts/venv.sh dev
	@$(BIN)/pytest -m slow

families:  ## the tests that look at every family of transformers
	@scripts/venv.sh dev
	@$(BIN)/pytest $(PYTEST_ARGS) -m families

same:  ## whether 2,400 predictions, 300 inventories and 61 recommendations are those that were frozen
	@scripts/venv.sh dev
	@PYTHONPATH=. $(BIN)/python -m benchmarks.same

mutants:  ## whether the tests notice sixty changes of arithmetic; MUTANTS="--room step" or "--only step/loss.py:33" asks for some
	@scripts/venv.sh dev
	@$(BIN)/python -m benchmarks.mutants $(MUTANTS)

check: lint types layers test  ## everything that has to be green before a commit

lint:  ## style and formatting
	@scripts/venv.sh dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types:  ## mypy, strict
	@scripts/venv.sh dev
	@$(BIN)/mypy

layers:  ## the direction of imports
	@scripts/venv.sh dev
	@$(BIN)/lint-imports

bench:  ## start-up and batch speed, written to benchmarks/results
	@scripts/venv.sh dev
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/batch_speed.py

docs:  ## write docs/cli.md, the schema of recipes, the README's sessions and the examples' output from the program
	@scripts/venv.sh dev
	@$(BIN)/python -m shardwise.cli.reference > docs/cli.md
	@$(BIN)/python -m shardwise.cli.recipe_schema > docs/recipe.schema.json
	@$(BIN)/python -m shardwise.exchange.mistakes.page > docs/mistakes.md
	@UPDATE_GOLDEN=1 $(BIN)/pytest tests/habits/test_readme.py tests/habits/test_notebook.py
	@cd examples && for program in *.py; do ../$(BIN)/python $$program > $${program%.py}.out; done

format:  ## let ruff lay out the code
	@scripts/venv.sh dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove the environment and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build src/*.egg-info
