# Every target builds its environment when it is missing; nothing else needs to be typed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check browser format bench bench-clicks bench-serving crash bench-gpu screenshot grid false-positives results pretrain clean

demo: .venv/ready ## A learned sketch beside rules on the embedded synthetic data (under 2 minutes after set-up)
	rm -rf demo
	$(BIN)/dips demo --out demo

test: .venv/ready ## All tests, pairwise subsets of large combinations (under 7 minutes on 2 cores)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal

test-all: .venv/ready ## Every combination
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal -m "exhaustive or not exhaustive"

check: .venv/ready ## Lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser: ## Install Chromium, with which the pages are tested; without it those tests are skipped
	@command -v chromium >/dev/null || timeout 300 sh -c "apt-get update -qq && apt-get install -y -qq chromium" >/dev/null 2>&1 \
		|| echo "Chromium could not be installed: the tests of pages will be skipped"

format: .venv/ready ## Rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready ## Speed and memory, as ratios measured in one run (under 10 minutes)
	$(BIN)/python -m benchmarks.reading
	DIPS_DATA= $(BIN)/python -m benchmarks.training --epochs 1
	$(BIN)/python -m benchmarks.growth --figure benchmarks/growth.png

DATA ?= ml-1m
bench-gpu: ## Training, growth and scale on a GPU; DATA is a name or a prepared file, and PYTHON needs torch, numpy and safetensors
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.training --device cuda --data $(DATA) --to-quality
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.growth --device cuda --policy learned --axes items,size,queue
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.growth --device cuda --axes interactions --interactions 1e6,1e7,1e8
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.scale --device cuda

bench-clicks: .venv/ready ## A million clicks: training beside ALS, SASRec and a linear model, and growth with the catalogue (half an hour)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[benchmarks]"
	$(BIN)/python -m benchmarks.clicks
	$(BIN)/python -m benchmarks.clicks --models "" --catalogue 1e4,1e5,1e6

bench-serving: .venv/ready ## The keeper's load figures, as ratios measured in one run (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.serving
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.serving_reads

crash: .venv/ready ## 350 kills of a keeper, at random times and at every SQL statement, beside a reader (15 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.serve.crashing --kills 350

screenshot: .venv/ready browser ## docs/report.png again: a small comparison on made worlds, its report, a picture (minutes)
	$(BIN)/python docs/screenshot.py

false-positives: .venv/ready ## How often "better" is said where there is no difference: a simulation (seconds)
	$(BIN)/python results/false_positives.py simulate

results: .venv/ready ## Tables of docs/results.md and docs/ablations.md, and the figure, from the csv files in results/
	$(BIN)/python results/figure.py

pretrain: .venv/ready ## Parameters of `pretrained` again, from synthetic worlds alone (about half an hour on one core)
	OMP_NUM_THREADS=1 $(BIN)/python results/pretrain.py

grid: .venv/ready ## Learned against the best static policy over a grid of made worlds (hours on 2 cores)
	$(BIN)/python results/grid.py

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean: ## Remove the environment and everything that was built
	rm -rf .venv build demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
