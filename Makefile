# What a developer and CI run. Everything happens in .venv and in temporary folders.

PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 10
SECONDS ?= 60
# More than cores: a test mostly waits for a mount to start or to end.
WORKERS ?= 4
LINTED := src tests examples hatch_build.py tools/compare-s3-servers tools/build-image tools/compare-flash-options tools/mutants tools/publish-figures
# Of the cluster's nodes, and of the image.
CLUSTER_PACKAGES = tools/system-packages runc containernetworking-plugins iptables iproute2 openssl podman debootstrap
# SET="dataset.files=300 repeats=2" changes a plan's values.
BENCH = $(BIN)/penstock bench run $(SET:%=--set %)
# A mount is three Python processes. Where the environment forbids to keep what is compiled, each
# compiles all of its modules anew: a fifth of its CPU, about a thousand times in `make test`.
export PYTHONDONTWRITEBYTECODE :=
# What an installation is made from, generated modules included.
PACKAGE := pyproject.toml constraints.txt hatch_build.py $(wildcard src/penstock/kubernetes/node/proto/*.proto)

.PHONY: setup demo test test-slow test-cluster coverage check lint dist soak fuzz bench bench-epoch bench-gpu bench-shared image cluster clean

setup: .venv/ready  ## makes .venv with `penstock` in it

.venv/ready: $(PACKAGE) tools/system-packages
	tools/system-packages fuse3 rsync strace linux-libc-dev memcached
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/demo-ready: $(PACKAGE) tools/system-packages
	tools/system-packages fuse3
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

demo: .venv/demo-ready  ## an ImageNet-like set over real S3: Penstock and rclone mount, side by side
	$(BENCH) plans/demo.yaml

test: lint  ## lint, types, layers and every test that is not slow: real S3 servers, mounts, programs
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not cluster"

test-slow: .venv/ready  ## kill loops, whole benchmarks, images, large listings, examples that train
	tools/system-packages openmpi-bin podman runc catatonit debootstrap busybox-static nginx-light caddy zsh fish chromium prometheus fio iproute2
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "slow and not cluster"

test-cluster: .venv/ready  ## the tests that run on Kubernetes, two nodes on this machine; needs root
	$(CLUSTER_PACKAGES)
	$(BIN)/python -m tests.cluster $(BIN)/pytest -n $(WORKERS) --dist worksteal -m cluster tests/cluster $(TESTS)

check: test test-slow test-cluster  ## exactly what CI runs

coverage: .venv/ready  ## branch coverage of both suites, the daemons' processes included
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal -m "not cluster"
	$(BIN)/python -W ignore -m coverage combine --quiet  # a killed process leaves unreadable data
	$(BIN)/coverage report --skip-covered --skip-empty

lint: .venv/ready
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/lint-imports
	$(BIN)/basedpyright --level error

dist: .venv/ready  ## dist/: a wheel and an sdist, for `pip install dist/penstock-*.whl`
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist .

soak: .venv/ready  ## readers, kills, changes, faults at once; MINUTES=10, SEED=N to run one again; needs root
	MODEL_EXAMPLES=100 $(BIN)/pytest tests/model --timeout 1200 --hypothesis-seed=$(or $(SEED),random)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

fuzz: .venv/ready  ## arbitrary bytes for each parser, SECONDS=60 each; TARGETS="yaml plan" for some
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

bench: .venv/ready  ## native, Penstock, JuiceFS, Alluxio, rclone, s3fs in one run, and the goals; needs root
	tools/system-packages s3fs redis-server fio $(if $(PENSTOCK_ALLUXIO_HOME),openjdk-17-jre-headless libfuse2)
	$(BENCH) plans/peers.yaml --skip-missing

bench-epoch: .venv/ready  ## a first epoch from a store 30 ms away: plans, warm-up, none, rclone, JuiceFS, Alluxio; needs root
	tools/system-packages redis-server $(if $(PENSTOCK_ALLUXIO_HOME),openjdk-17-jre-headless libfuse2)
	$(BENCH) plans/epoch.yaml --skip-missing

bench-gpu: .venv/ready  ## a real ResNet-50 on a GPU: from the GPU itself, tmpfs, Penstock warm and cold, rclone; needs root
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BENCH) plans/gpu.yaml

bench-shared: .venv/ready  ## four nodes with a shared tier on this machine: bytes, speed, failures; needs root
	tools/system-packages memcached iproute2
	$(BIN)/python -m penstock.bench.shared $(SET:%=--set %)

image: .venv/ready  ## the container image, build/penstock-image.tar; no registry is needed; needs root
	tools/system-packages podman runc debootstrap
	$(BIN)/python tools/build-image $(if $(BASE),--base $(BASE))

cluster: .venv/ready  ## a Kubernetes with Penstock and a bucket to play with, until Ctrl-C; needs root
	$(CLUSTER_PACKAGES)
	$(BIN)/python -m tests.cluster $(BIN)/python -m tests.cluster.playground

clean:
	rm -rf .venv build dist bench-results soak-results fuzz-results
