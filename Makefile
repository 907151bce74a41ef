# Everything a person or CI runs. `make` alone tells.
SHELL := /bin/bash
PYTHON := .cache/venv/bin/python
SYSTEM_PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
PYTEST := $(PYTHON) -m pytest
# Tests make many small trees: in memory, where there is such a folder, they take half the time. They run programs there,
# which Docker's /dev/shm forbids.
export PYTEST_DEBUG_TEMPROOT := $(if $(shell grep -s ' /dev/shm .*noexec' /proc/mounts),,$(wildcard /dev/shm))

.PHONY: help setup setup-venv containerd demo unit test test-one test-changed test-faults mutants runtimes rotation lab lab-core lab-shell cluster cluster-shell cluster-demo chart-test podman bench simulate ttrpc image image-test check generate format

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

setup: ## everything a bare Debian 12 or 13 lacks, into .cache (root)
	@$(SYSTEM_PYTHON) -m tests.rig.setup

setup-venv: ## only the virtual environment (no root)
	@$(SYSTEM_PYTHON) -m tests.rig.setup --venv-only

containerd: setup
	@$(PYTHON) -m tests.rig.build_runtimes containerd-2.3

demo: setup ## a real containerd starts pods that get their RDMA devices (root); KEEP=1: a prompt on that node
	@$(PYTHON) -m tests.rig.demo $(if $(KEEP),--keep)

unit: setup-venv ## tests that need neither root nor Linux, in parts at the same time
	@$(PYTHON) -m tests.parts tests/unit -m "not root" -q

test: containerd ## all tests but those in the virtual machine and on Kubernetes, in parts at the same time, each on a host of its own (root)
	@$(PYTHON) -m tests.rig.debian_roots
	@$(PYTHON) -m tests.parts tests -q

test-one: setup-venv ## only T: a file, a folder, file::test or a part of a test's name; of a file of nri_rdma: its tests (seconds)
	@$(PYTHON) -m tests.one "$(T)"

test-changed: setup-venv ## only tests of the files that differ from main, or from BASE, and tests/house (a minute)
	@$(PYTHON) -m tests.one --changed $(BASE)

test-faults: containerd ## daemon, runtime and shims killed at every boundary, netdevs and namespaces deleted (root; minutes)
	@$(PYTEST) tests/faults tests/runtime/test_endings.py --every-fault

mutants: setup ## COUNT mistakes planted in the code, one at a time, chosen by SEED: how many the tests notice (minutes)
	@nice -n 10 $(PYTHON) -m tests.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),40)

runtimes: setup ## the runtime tests on all runtimes that `make test` leaves out, built with Go (root; minutes; check has one at a time)
	@nice -n 10 $(PYTHON) -m tests.rig.build_runtimes
	@$(PYTEST) tests/runtime -m every_runtime --other-runtimes

lab: setup ## the tests that need RDMA in the kernel, in a virtual machine (root); KERNEL=6.12: another one
	@$(PYTHON) -m tests.lab $(if $(KERNEL),--kernel $(KERNEL))

lab-core: setup ## the few tests of these that every run of CI has; the others come in turn (root; minutes)
	@$(PYTHON) -m tests.lab --core

lab-shell: setup ## a console in that virtual machine
	@$(PYTHON) -m tests.lab --shell $(if $(KERNEL),--kernel $(KERNEL))

cluster: setup ## the tests on a real Kubernetes, which is built once into the user's cache with Go (root; minutes, then seconds); KUBERNETES=v1.34.4: another version
	@$(PYTHON) -m tests.cluster -- -q

cluster-shell: setup ## a prompt with kubectl in such a cluster; NODES=2: two nodes
	@$(PYTHON) -m tests.cluster --shell

cluster-demo: setup ## the chart in a real Kubernetes: installed, pods in each of three ways, removed (root; minutes with its builds, then seconds)
	@$(PYTHON) -m tests.cluster --demo

chart-test: setup-venv ## what helm makes of the chart, by the schemas of four releases of Kubernetes, and typos in its values
	@$(PYTHON) -m tests.chart -- -q

podman: setup ## containers of real podman get their devices; it is fetched once into the cache (root; minutes); SUITES="bookworm trixie forky": of these
	@$(PYTHON) -m tests.oci $(SUITES) -- -q

bench: setup ## speed and size as ratios to a floor, into build/bench.json; ttrpc beside Go and gRPC, into build/ttrpc-bench.json
	@$(PYTHON) -m bench; code=$$?; $(PYTHON) -m bench.ttrpc && exit $$code

simulate: setup-venv ## jobs come to a node and go: how many have NICs next to their GPUs, into build/simulate.json
	@$(PYTHON) -m bench.simulate

ttrpc: setup-venv ## the ttrpc library as a wheel of its own, into build/pyttrpc; its tests run against it, with protobuf only
	@$(PYTHON) -m tests.rig.ttrpc_wheel

image: setup-venv ## the daemon's image as an OCI archive in build/, of locked packages, without Docker; ARCH=arm64: of that, ARCH=all: of both
	@$(PYTHON) -m deploy.image $(if $(ARCH),--arch $(ARCH))

image-test: setup ## two images are equal byte by byte, and what is in them runs, arm64 by qemu (root; minutes)
	@$(PYTHON) -m tests.image -- -q

rotation: setup ## the turn that was green longest ago, by docs/rotation.md (root; minutes); TURN=KubeRay: that one
	@$(PYTHON) -m tests.rotation $(if $(TURN),'$(TURN)')

check: ttrpc test lab-core rotation ## what CI runs

generate: setup-venv ## nri_rdma/pb, nri_rdma/ttrpc/pb, tests/rig/pb, the schemas of configuration and request, the tables of pages, the picture of a node
	@$(PYTHON) api/generate.py
	@$(PYTHON) -m nri_rdma config schema > api/config.schema.json
	@$(PYTHON) -m nri_rdma config schema --request > api/request.schema.json
	@$(PYTHON) -m deploy.chart
	@$(PYTHON) docs/key_tables.py
	@$(PYTHON) docs/generate.py
	@$(PYTHON) -m tests.rig.generate
	@$(PYTHON) -m tests.rig.topology_page

format: setup-venv ## bring the code into its form
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .
