PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Passed on to the command: make serve ARGS="--http-port=9000"
ARGS   ?=
# How many processes run tests at a time; 0 is this one alone.
TEST_PROCESSES ?= 4

# Python for the lowest versions that pyproject.toml allows: the oldest there is. numpy's lowest has no wheels for 3.12 and later.
LOWEST        := $(VENV)-lowest
LOWEST_PYTHON ?= $(if $(shell python3.10 -c 'print(1)' 2>/dev/null),python3.10,$(PYTHON))
# Extras whose lower bounds count, and of `dev` what has to fit the others.
LOWEST_BOUNDS := examples infer openai grpcio redis otel s3 https dev:grpcio-tools

# PyTorch, JAX and ONNX Runtime take 2 GB, so they have an environment of their own.
FRAMEWORKS  := $(VENV)-frameworks
TORCH       ?= torch==2.13.0
# PyPI's torch for Linux brings CUDA along, 3 GB more; this index has the builds for the CPU.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Examples that need it.
FRAMEWORK_EXAMPLES := chat jax_add_sub pytorch_add_sub
EXAMPLE_VENV       := $(if $(filter $(NAME),$(FRAMEWORK_EXAMPLES)),$(FRAMEWORKS),$(VENV))
EXAMPLE_STAMP      := $(if $(filter $(NAME),$(FRAMEWORK_EXAMPLES)),$(FRAMEWORKS)/.installed,$(VENV)/.serving)

# Where test-deploy keeps packages whose types are read, and nothing of which is run.
SCHEMAS := $(VENV)/schemas

# Clients of OpenAI's API bring half a hundred packages, which the other tests do without.
OPENAI := $(VENV)-openai

# Ray and what comes with it: 850 MB, which take minutes to install.
RAY := $(VENV)-ray

# Copies of the project with compiled modules beside the source: one to measure, as wheels have it, and one to test, which is sooner
# made and half as fast.
COMPILED        := build/compiled
COMPILED_TESTED := build/compiled-tested

.PHONY: serve example compiled test test-stalled test-compiled test-front-ends test-lowest test-console test-deploy test-frameworks test-openai test-ray fuzz fuzz-decoders torture siege mutants check format protos bench \
	bench-peers plots docs wheel compiled-wheel clean

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
TESTING     := PYTHONDONTWRITEBYTECODE= PYTHONHASHSEED=0
PYTEST      := $(TESTING) $(BIN)/python -m pytest

# Stamps are older than pyproject.toml when dependencies changed. To serve takes less than to work on it.
$(VENV)/.serving: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --editable '.[examples]'
	touch $@

# Groups of dependencies are known to pip since 25.1.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) 'pip>=25.1'
	$(BIN)/python $(PIP_INSTALL) --editable '.[examples]' --group dev
	touch $(VENV)/.serving $@

# What others depend on is left to pip.
$(LOWEST)/.installed: pyproject.toml tools/lowest_versions.py
	test -x $(LOWEST)/bin/python || $(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tools/lowest_versions.py $(LOWEST_BOUNDS) > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python $(PIP_INSTALL) 'pip>=25.1'
	$(LOWEST)/bin/python $(PIP_INSTALL) --constraint $(LOWEST)/constraints.txt --editable '.[examples]' --group dev
	touch $@

# torch comes first and alone, so that nothing else is looked for in its index; the second step adds what it depends on.
# Tests skip what cannot be imported: the last step makes sure that nothing is.
$(FRAMEWORKS)/.installed: pyproject.toml
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) 'pip>=25.1'
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --no-deps --index-url $(TORCH_INDEX) '$(TORCH)'
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --editable '.[examples,openai]' --group frameworks '$(TORCH)'
	$(FRAMEWORKS)/bin/python -c 'import jax, jinja2, onnx, onnxruntime, openai, torch, transformers'
	touch $@

# In one step: what satisfies Ray and tritonclient, of which one wants a protobuf that the other's packages may be too new for.
$(RAY)/.installed: pyproject.toml
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python $(PIP_INSTALL) 'pip>=25.1'
	$(RAY)/bin/python $(PIP_INSTALL) --editable '.[examples,ray]' --group ray
	touch $@

serve: $(VENV)/.serving  ## install, then serve model_repository/
	$(BIN)/pytriton-lite serve model_repository $(ARGS)

example: $(EXAMPLE_STAMP)  ## server and client of an example: make example NAME=decoupled; without NAME: which there are
	@$(EXAMPLE_VENV)/bin/python examples/run.py $(NAME)

# pytest rewrites the assertions of a module that it imports for the first time: here once, and not in each process that runs tests.
$(VENV)/.rewritten: $(VENV)/.installed
	$(PYTEST) --collect-only -qq tests/contract tests/frontends >/dev/null & \
		$(PYTEST) --collect-only -qq --ignore=tests/contract --ignore=tests/frontends >/dev/null; wait
	touch $@

# Tests wait for processes more than they compute. A file's tests stay together; their ids must not depend on a hash. Servers
# and workers that they start would compile their modules each time where an environment forbids to write that down.
test: $(VENV)/.installed $(VENV)/.rewritten  ## install, then run every test
	$(BIN)/python -m compileall -q -j 0 pytriton_lite tests tools
	$(PYTEST) --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(ARGS)

test-stalled: $(VENV)/.installed  ## run the tests while their processes are stopped for moments, as on a busy machine: make test-stalled ARGS="--seed 7"
	$(TESTING) $(BIN)/python -m tools.stalled --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(ARGS)

compiled: $(VENV)/.installed  ## compile the modules of the hot ways as wheels do, in a copy of the project that benchmarks can measure
	$(BIN)/python -m tools.compiled.build $(COMPILED)

# Python finds the copy first: it is the current directory, and where servers are started elsewhere it is on the path.
test-compiled: $(VENV)/.installed  ## compile the same modules without optimisation, then run every test there
	$(BIN)/python -m tools.compiled.build $(COMPILED_TESTED) 0
	$(BIN)/python -m compileall -q -j 0 $(COMPILED_TESTED)
	cd $(COMPILED_TESTED) && PYTHONPATH="$$PWD" $(TESTING) $(abspath $(BIN))/python -m pytest \
		--numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(ARGS)

# Every server of a test has front ends in processes of their own, unless it says otherwise.
test-front-ends: $(VENV)/.installed  ## run the tests of real servers with two front ends each
	TESTED_FRONT_ENDS=2 $(MAKE) test ARGS="$(or $(ARGS),tests/contract tests/adversity tests/engine tests/examples tests/openai_routes tests/tools)"

test-lowest: $(LOWEST)/.installed  ## install the lowest versions that pyproject.toml allows, then run every test with them
	$(TESTING) $(LOWEST)/bin/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(ARGS)

# Debian's Chromium, or another one; playwright drives it and downloads none of its own. CONSOLE_SCREENSHOTS=<folder> keeps pictures.
$(VENV)/.browsing: $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) --group browser
	touch $@

test-console: $(VENV)/.browsing  ## install what is needed, then look at the console in a real browser
	CHROMIUM="$$(tools/chromium.sh)" && export CHROMIUM && $(BIN)/python -m pytest tests/browser $(ARGS)

# Kinds of KServe, KEDA and the Prometheus operator: packages that would bring half a cluster along.
$(VENV)/.deployable: $(VENV)/.installed tools/deploy_programs.sh
	tools/deploy_programs.sh
	$(BIN)/python $(PIP_INSTALL) --group deploy
	$(BIN)/python $(PIP_INSTALL) --no-deps --upgrade --target $(SCHEMAS) kserve cloudcoil cloudcoil-models-keda \
		cloudcoil-models-prometheus-operator
	touch $@

# For whoever has them: a folder of CustomResourceDefinitions, DEPLOY_CRDS=<folder>, and the programs of an API server,
# KUBEBUILDER_ASSETS=<folder>. The folder `cluster` is one that `make test` passes by; naming it beside the one that it lies in does not
# help, since pytest drops what lies in another argument.
test-deploy: $(VENV)/.deployable  ## install Helm, Envoy and schemas, then try deploy/: manifests, balancers, rolling updates, broken networks; minutes
	DEPLOY_SCHEMAS="$(abspath $(SCHEMAS))" DEPLOY_CRDS="$(DEPLOY_CRDS)" PATH="$$PATH:/usr/sbin" \
		$(BIN)/python -m pytest --override-ini=norecursedirs=__pycache__ tests/deploy $(ARGS)

test-frameworks: $(FRAMEWORKS)/.installed  ## install PyTorch, JAX and ONNX Runtime, then run the tests that need them
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks $(ARGS)

# Tests skip what cannot be imported: the last step makes sure that nothing is.
$(OPENAI)/.installed: pyproject.toml
	test -x $(OPENAI)/bin/python || $(PYTHON) -m venv $(OPENAI)
	$(OPENAI)/bin/python $(PIP_INSTALL) 'pip>=25.1'
	$(OPENAI)/bin/python $(PIP_INSTALL) --editable '.[openai]' --group openai
	LITELLM_LOCAL_MODEL_COST_MAP=True $(OPENAI)/bin/python -c 'import langchain_openai, litellm, openai'
	touch $@

# What clients warn of is theirs.
test-openai: $(OPENAI)/.installed  ## install the openai package, LangChain and LiteLLM, then have them talk to a server
	$(OPENAI)/bin/python -m pytest -W default tests/openai_clients $(ARGS)

test-ray: $(RAY)/.installed  ## install Ray, then run applications on a cluster of this machine alone, in minutes
	$(RAY)/bin/python -m pytest tests/ray_serve $(ARGS)

fuzz: $(VENV)/.installed  ## 100,000 bad requests to a real server, in minutes: make fuzz ARGS="--seed 1 --requests 20000"
	$(BIN)/python -m tests.fuzz $(ARGS)

fuzz-decoders: $(VENV)/.installed  ## coverage-guided, a minute for each decoder: make fuzz-decoders ARGS="--seconds 600 --target http2"
	$(BIN)/python $(PIP_INSTALL) --group fuzz
	$(BIN)/python -m tools.decoder_fuzz $(ARGS)

torture: $(VENV)/.installed  ## random faults under load, then an audit, in minutes: make torture ARGS="--seed 1 --minutes 10"
	$(BIN)/python -m tools.torture $(ARGS)

siege: $(VENV)/.installed  ## every known attack while an honest client measures, an hour: make siege ARGS="rapid-reset --seconds 3"
	$(BIN)/python -m tools.siege $(ARGS)

mutants: $(VENV)/.installed  ## coverage by rooms, and which of 300 changes to the product no test notices, in hours: make mutants ARGS="--count 50"
	$(BIN)/python -m tools.mutants $(ARGS)

check: $(VENV)/.installed  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

protos: $(VENV)/.installed  ## regenerate pytriton_lite/proto from protos/
	$(BIN)/python protos/generate.py

bench: $(VENV)/.installed  ## throughput beside a peer: make bench ARGS="--peer-command '...'"
	$(BIN)/python benchmarks/compare.py $(ARGS)

bench-peers: $(VENV)/.installed  ## other model servers beside this one, each installed into .peers/: make bench-peers ARGS="--rounds 5"
	$(BIN)/python benchmarks/peers.py $(ARGS)

# What the site and the pages that are followed need, beside the tests' packages.
$(VENV)/.documented: $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) --group docs
	touch $@

docs: $(VENV)/.documented  ## check every link and snippet, follow the tutorial, make the site in build/site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest --numprocesses=2 tests/pages tests/convert tests/formats $(ARGS)

plots: $(VENV)/.installed  ## draw docs/plots/ and the tables of docs/performance.md anew from benchmarks/results/
	$(BIN)/python $(PIP_INSTALL) --group plots
	$(BIN)/python benchmarks/plots.py $(ARGS)

wheel: $(VENV)/.installed  ## build dist/ and try the wheel in an environment of its own; with TAG=v1.2.3: only if that is the version
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/try_wheel.py dist $(TAG)

compiled-wheel: $(VENV)/.installed  ## the same with a wheel for this Python and platform, which needs a C compiler
	rm -rf dist
	HATCH_BUILD_HOOKS_ENABLE=true $(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/try_wheel.py dist $(TAG)

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(LOWEST) $(OPENAI) $(RAY) .peers dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
