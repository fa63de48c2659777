# Every target does its own set-up. `make help` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
# Node.js 24 comes with the packages, so the machine's own may be older.
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

NAME ?= dev
HOSTS ?= 0
OPERATOR ?= 0
DPI_MAX ?= 240
PACKAGES := node_modules/.berth-installed

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# npm runs on the machine's own Node.js here, and would warn that our packages ask for the newer one that comes with them. Its words are no
# output of a target: `make host-token` writes a kubeconfig to its output.
$(PACKAGES): package.json package-lock.json
	@npm ci --no-audit --no-fund --loglevel=error >&2
	@touch $@

.PHONY: demo demo-lines pictures demo-down
demo: $(PACKAGES) ## Run a real VM on this machine (ARCH=arm64 for an ARM host)
	@node hack/demo.ts up
demo-lines: $(PACKAGES) ## Type the commands of README.md and pages into a shell, on the running demo
	@node hack/demolines.ts
pictures: $(PACKAGES) ## Make docs/pictures on the running demo (needs chromium and prometheus)
	@node hack/pictures.ts
demo-down: $(PACKAGES) ## End the demo and remove everything it made
	@node hack/demo.ts down

.PHONY: test unit integration docker chart harness e2e faults nat hostile real clients
test: $(PACKAGES) prerequisites ## Run all tests; the last line counts them
	@node hack/test.ts
unit: $(PACKAGES) ## Tests beside the code, seconds
	@node hack/test.ts unit
integration: $(PACKAGES) ## Tests against a real API server
	@node hack/test.ts integration
docker: $(PACKAGES) prerequisites ## Tests of a control plane in containers
	@node hack/test.ts docker
chart: $(PACKAGES) prerequisites ## Tests of the Helm chart, on a real API server
	@node hack/test.ts chart
harness: $(PACKAGES) ## Tests of the cluster harness itself
	@node hack/test.ts harness
e2e: $(PACKAGES) prerequisites ## Tests with real guests, and on a cluster of real nodes (root)
	@node hack/test.ts e2e installed
faults: $(PACKAGES) prerequisites ## Tests that kill things at the worst moment
	@node hack/test.ts faults
nat: $(PACKAGES) prerequisites ## Tests of NAT in network namespaces (root)
	@node hack/test.ts nat
hostile: $(PACKAGES) prerequisites ## Hostile input to every part: HOSTILE_SEED=7 HOSTILE_SCALE=1 (all of it)
	@node hack/test.ts hostile shares
real: $(PACKAGES) ## The contracts of emulator and tart with the real programs, and the console in Chromium: ANDROID_HOME=/opt/android-sdk
	@node hack/test.ts real
clients: $(PACKAGES) ## Generated clients in Go and Python, and jobs of CI systems in real guests (needs Go and PyPI)
	@node hack/test.ts clients

.PHONY: flaky
flaky: $(PACKAGES) ## Run one file of tests 20 times on a busy machine: FILE=test/harness/cluster.test.ts
	@node hack/flaky.ts '$(FILE)'

.PHONY: mutants
mutants: $(PACKAGES) ## Break the product in small ways; each must turn a test red: ONLY=operator/
	@node hack/mutants.ts --only '$(ONLY)'

.PHONY: structure surface
structure: $(PACKAGES) ## Count files, lines, importers, arrows and copies: FOLDER=../other-checkout
	@node hack/structure.ts $(FOLDER)
surface: $(PACKAGES) ## List all that users can name or read, to compare two checkouts: FOLDER=../other-checkout
	@node hack/surface.ts $(FOLDER)

.PHONY: prerequisites
prerequisites: $(PACKAGES) ## Install the distribution packages that tests need (asks on a terminal)
	@node hack/prerequisites.ts

.PHONY: lint format generate verify manifests bundle cli mac
lint: $(PACKAGES) ## Check format, lint rules, types, prose and dead code, the programs' also without tests
	biome format .
	oxlint --type-aware
	tsc -p .
	tsc -p console
	node hack/prose.ts
	knip --config knip.jsonc
	knip --config knip.production.jsonc --production
format: $(PACKAGES) ## Format the sources
	biome format --write .
generate: $(PACKAGES) ## Write the generated files: crds/, the chart's schema and kinds, docs
	node hack/generate.ts
	node hack/values.ts
	node hack/openapi.ts
	node hack/docs.ts
verify: $(PACKAGES) ## Check that generated files are current, and that each field has a test
	node hack/generate.ts --check
	node hack/values.ts --check
	node hack/docs.ts --check
	node hack/openapi.ts --check
	node hack/fields.ts
manifests: $(PACKAGES) ## Render the chart into dist/install.yaml for kubectl: HELM_ARGS='--set displayDPIMaximum=320'
	@node hack/manifests.ts $(HELM_ARGS)
bundle: $(PACKAGES) ## Bundle the programs into dist/
	node hack/bundle.ts
cli: $(PACKAGES) ## Make the command dist/berth: PLATFORMS=linux-arm64,darwin-arm64 or all
	@node hack/cli.ts $(if $(PLATFORMS),--platforms '$(PLATFORMS)')
mac: $(PACKAGES) ## Make the archive of the agent for Apple hosts in dist/
	@node hack/mac.ts

.PHONY: images audit
images: $(PACKAGES) ## Build the container images into dist/images/: BASE=image TAG=0.1.0 REGISTRY=localhost
	@node hack/images.ts $(if $(BASE),--base '$(BASE)') $(if $(TAG),--tag '$(TAG)') $(if $(REGISTRY),--registry '$(REGISTRY)')
audit: $(PACKAGES) ## Known vulnerabilities of what the images hold (asks the registry)
	@npm audit --omit=dev

.PHONY: bench
bench: $(PACKAGES) ## Measure: VMs on simulated hosts, starts, pulls, clones, the image cache
	@node test/bench/main.ts --charts docs/develop/charts

.PHONY: host-token
host-token: $(PACKAGES) ## Make what one host joins with, good for a day: a kubeconfig on stdout: NAME=rack1-7
	@node hack/host-token.ts --name '$(if $(filter-out file,$(origin NAME)),$(NAME))'

.PHONY: cluster-up cluster-down
cluster-up: $(PACKAGES) ## Start a cluster: NAME=x HOSTS=600 OPERATOR=1 DPI_MAX=320
	@node hack/cluster.ts up --name '$(NAME)' --hosts '$(HOSTS)' --operator '$(OPERATOR)' --dpi-max '$(DPI_MAX)'
cluster-down: $(PACKAGES) ## End a cluster and remove its state: NAME=x
	@node hack/cluster.ts down --name '$(NAME)'
