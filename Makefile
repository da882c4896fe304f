# What Survives Augmentation: the book, its tests, and ways to read it.  `make help` lists the targets.
# Kept to what GNU make 3.81 knows, which is the one that macOS has.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# What may be set on the command line, as in `make serve PORT=8123`:
PYTHON  ?= python3
VENV    ?= .venv
PORT    ?= 8000
WORKERS ?= 2
PYTEST  ?=
JUNIT   ?=
LAB     ?=

BIN    := $(VENV)/bin
RUN    := $(BIN)/python -m
STAMP  := $(VENV)/.ready
PAGE   := _build/html/index.html
SOURCE := sslbook sslchapters bookbuild benchmarks tests tools data
PROSE  := chapters examples README.md CONTRIBUTING.md

# One thread a process: parallel runs don't fight for the cores, and float32 sums come out the same each time.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Each worker takes an equal share of the tests in their order, so that most of what a module prepares is prepared once; who is done helps.
SHARED := -n $(WORKERS) --dist worksteal
# What needs a browser, a package registry or the built book, and what takes longest.
ELSEWHERE := long or browser or registry or built
# Another machine's rounding, at random, see bookbuild/noise.py: for others `make elsewhere NOISE="2 3"`. Chapters hold what they
# call; the library's tests run with it where rounding matters.
NOISE ?= 1
NOISY := $(addprefix tests/sslbook/,losses networks operator trees)
unexport PYTHONPATH
unexport PYTHONHOME

.PHONY: help environment book regression test check elsewhere format serve lab notebooks pdf lock clean distclean FORCE

help:  ## list the targets
	@echo "What Survives Augmentation: an executable book on why self-supervised learning works"
	@echo
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/\1|\2/p' Makefile \
	    | while IFS='|' read -r target words; do printf '  make %-12s %s\n' "$$target" "$$words"; done

environment: $(STAMP)  ## make the environment in .venv (the other targets do so when they need it)
	@echo "The environment is in $(VENV).  Next: make book"

# Also made again where its Python has gone, or where the checkout has moved: its scripts hold absolute paths.
ifeq ($(wildcard $(BIN)/python),)
$(STAMP): FORCE
else ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif
$(STAMP): pyproject.toml requirements.lock tools/environment.py
	@echo "Making the environment in $(VENV) (once; a minute or two, mostly downloads)"
	@$(PYTHON) tools/environment.py $(VENV)
	@echo "$(CURDIR)" > $@

book: $(STAMP)  ## execute what changed and build the pages; says which numbers differ on this machine
	@echo "Building the book"
	@$(RUN) tools.lint_prose
	@$(RUN) sslbook build

regression: $(STAMP)  ## hold every claim and every measured number of the chapters; for CI: make regression JUNIT=FILE
	@$(RUN) sslbook regression $(if $(JUNIT),--junit $(JUNIT))

test: check  ## lint, types, and the tests that any machine can run
	@echo "Testing, $(WORKERS) at a time"
	@$(ONE_THREAD) $(RUN) pytest $(SHARED) -m "not ($(ELSEWHERE))" $(PYTEST)
	@echo "All is well.  Tests of the built pages, and what takes longest: make book elsewhere"

elsewhere: $(STAMP)  ## tests of the built pages, the longest, and all claims with another machine's rounding
	@echo "Testing what takes longest, $(WORKERS) at a time"
	@$(ONE_THREAD) $(RUN) pytest $(SHARED) -m "$(ELSEWHERE)" $(PYTEST)
	@for seed in $(NOISE); do echo "Holding the chapters with the rounding of another machine ($$seed)"; \
	    SSLBOOK_NOISE=$$seed $(RUN) sslbook regression --out _build/noise-$$seed || exit; done
	@echo "Testing with the rounding of another machine, $(WORKERS) at a time"
	@$(ONE_THREAD) SSLBOOK_NOISE=$(firstword $(NOISE)) $(RUN) pytest $(SHARED) -m "not (slow or $(ELSEWHERE))" $(NOISY) $(PYTEST)

check: $(STAMP)  ## lint, format, types, imports, spelling and the rules of prose, without running anything
	@echo "Checking lint, format, types, imports and spelling"
	@$(RUN) ruff check $(SOURCE)
	@$(RUN) ruff format --check $(SOURCE)
	@$(RUN) mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(RUN) codespell_lib $(SOURCE) $(PROSE)
	@$(RUN) tools.lint_prose

format: $(STAMP)  ## put the code into its format, and mend what lint can mend
	@$(RUN) ruff check --fix $(SOURCE)
	@$(RUN) ruff format $(SOURCE)

serve: book  ## read the book at http://127.0.0.1:8000 (elsewhere: make serve PORT=8123)
	@echo "Serving the book at http://127.0.0.1:$(PORT)/  (Ctrl-C stops it)"
	@$(RUN) http.server --bind 127.0.0.1 --directory $(dir $(PAGE)) $(PORT) \
	    || { status=$$?; [ $$status -ge 130 ] || echo "Is port $(PORT) taken?  make serve PORT=8123"; exit $$status; }

lab: $(STAMP)  ## open copies of the chapters in JupyterLab
	@echo "Opening the chapters in JupyterLab, at http://localhost:8888/lab or the next free port, once the book is built"
	@$(RUN) sslbook lab -- $(LAB)

notebooks: $(STAMP)  ## build the book and write its chapters as .ipynb that run alone, to _build/notebooks
	@echo "Writing the notebooks"
	@$(RUN) sslbook notebooks
	@echo "They are in $(CURDIR)/_build/notebooks"

pdf: $(STAMP)  ## build the book and print it into _build/book.pdf (needs Chromium)
	@echo "Printing the book"
	@$(RUN) sslbook pdf

lock:  ## resolve requirements.lock anew from the ranges of pyproject.toml (for maintainers; needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 1; }
	@uv pip compile pyproject.toml --extra book --extra train --extra lab --extra test --universal --fork-strategy fewest \
	    --python-version 3.11 --upgrade --no-annotate --generate-hashes --custom-compile-command "make lock" --quiet -o requirements.lock
	@echo "requirements.lock is new.  Next: make book test"

clean:  ## remove what was built (the environment stays)
	@rm -rf _build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(SOURCE) -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed what was built, and nothing else (make distclean removes the environment too)."

distclean: clean  ## remove the environment as well
	@rm -rf $(VENV)
	@echo "Removed the environment as well.  From nothing again: make book"
