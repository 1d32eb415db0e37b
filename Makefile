# margolite: build, test and try; `make help` lists the targets. Each works from a
# clean clone with git and make: build/go brings Go, build/need what else it needs.
# Each step prints one line; V=1 shows its commands.

GO      ?= build/go
TAGS    := grpcnotrace,osusergo,netgo,no_rdt
# The shim speaks ttrpc alone; the agent needs gRPC.
SHIM    := no_grpc,osusergo,netgo
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
# Of the commit, never of the build: the same commit gives the same bytes.
TIME    ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),$(SOURCE_DATE_EPOCH))
STAMP   := github.com/margolite/margolite/build
# The linker begins each segment for arm at 64 KiB, for pages of a size that Linux
# does not have there: up to three times that much of the file would be empty.
ROUND    = $(if $(filter arm,$(or $(GOARCH),$(shell $(GO) env GOARCH))),-R 4096 )
LDFLAGS  = $(ROUND)-s -w -X $(STAMP).version=$(VERSION) -X $(STAMP).commit=$(COMMIT) -X $(STAMP).time=$(TIME)
# Copies of small functions are a tenth of the agent, which waits most of the
# time. What works through bytes keeps them: build/README.md has what it costs.
FAST    := runtime/... internal/... sync/... unicode/... encoding/binary compress/... hash/... github.com/klauspost/... \
	crypto/aes crypto/cipher crypto/sha1 crypto/md5 crypto/subtle vendor/golang.org/x/crypto/... crypto/internal/fips140deps/... \
	$(addprefix crypto/internal/fips140/,aes/... sha256 sha512 subtle alias edwards25519/field)
SMALL   := -gcflags=all=-l $(FAST:%=-gcflags=%=)
BUILD    = $(if $(V),,@)CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

TARGETS := linux/amd64 linux/arm64 linux/arm/7 linux/arm/6 linux/riscv64

OUT     ?= bin

# The programs that the tests run.
TESTED  := runc containerd docker-registry busybox nft ip openssl gpg gpgv curl unzip mke2fs

# say prints a step, unless V=1 shows its commands.
say      = $(if $(V),,@echo '$1')

# HUSH drops the lines, one a module, of a first build.
HUSH     = $(if $(V),,2>&1 | { grep -v '^go: downloading' || :; })

.PHONY: all build device cross deb packages sbom reproducible stamp sizes clean help demo recording \
	test test-all lint vuln fuzz chaos neighbours test-packages test-image test-field test-arm test-qemu bench memory wear year

all: build

##@ Try

demo: ## show margolite at work, in ten seconds; STORY=approval, KEEP=1
	@build/need runc
	@[ -e bin/demo ] || echo 'building, which takes about two minutes'
	@set -o pipefail; { $(MAKE) --no-print-directory build say= && $(BUILD:@%=%) -o bin/ ./test/demo; } $(HUSH)
	@PATH="$$($(GO) env GOROOT)/bin:$$PATH" bin/demo $(if $(STORY),-$(STORY)) $(if $(KEEP),-keep) $(RECORD)

recording: ## record the demo as test/demo/demo.svg, for the README
	@$(MAKE) --no-print-directory demo RECORD='-record test/demo/demo.svg'
	@echo recorded in test/demo/demo.svg

##@ Build

build: device ## build margolite, its shim, its init and wfmsim, the development WFM, into bin/
	$(call say,building wfmsim)
	$(BUILD) -o bin/ ./cmd/wfmsim

# The programs of a device, into OUT, for GOOS, GOARCH and GOARM. Recipes of image
# builders call this target with VERSION, COMMIT and TIME of their own.
device: ## build what a device needs into OUT=bin, for GOARCH and GOARM
	$(call say,building margolite into $(OUT))
	$(BUILD) $(SMALL) -tags '$(TAGS)' -o $(OUT)/ ./cmd/margolite
	$(BUILD) -tags '$(SHIM)' -o $(OUT)/ ./cmd/containerd-shim-runc-v2
	$(BUILD) -o $(OUT)/ ./cmd/margolite-init

cross: ## build for every architecture, into dist/
	@set -e; for t in $(TARGETS); do \
	  IFS=/ read -r os arch arm <<< "$$t"; out=dist/$$os-$$arch$${arm:+v$$arm}; \
	  export GOOS=$$os GOARCH=$$arch GOARM=$$arm; \
	  $(MAKE) --no-print-directory device OUT=$$out; \
	done

# The architecture of a Debian package, and Go's GOARCH/GOARM for it.
ARCH    ?= $(shell dpkg --print-architecture)
GOFOR    = $(subst /, ,$(patsubst armhf,arm/7,$(ARCH)))

deb: device ## make one Debian package, for ARCH=arm64, armhf, riscv64 or amd64
	@build/need dpkg-deb
	@rm -rf dist/deb
	@GOOS=linux GOARCH=$(word 1,$(GOFOR)) GOARM=$(word 2,$(GOFOR)) \
	  $(MAKE) --no-print-directory device OUT=dist/deb/linux-$(patsubst armhf,armv7,$(ARCH))
	$(call say,packing)
	$(if $(V),,@)packaging/build '$(VERSION)' '$(TIME)' $(ARCH)

packages: cross build ## make and lint all packages and the container image, into dist/packages
	build/need dpkg-deb lintian shellcheck mandoc zsh fish
	packaging/build '$(VERSION)' '$(TIME)'

sbom: cross ## write the bills of materials (CycloneDX) and the licenses, into dist/sbom
	packaging/sbom/build dist "$$(packaging/version '$(VERSION)' '$(TIME)')" dist/sbom

reproducible: packages ## build all packages again elsewhere and compare every byte
	build/reproducible

stamp: ## print VERSION, COMMIT and TIME, which repeat this build elsewhere
	@echo 'VERSION=$(VERSION) COMMIT=$(COMMIT) TIME=$(TIME)'

sizes: ## print the symbols of the agent on arm v7, largest first
	@f=$$(mktemp); trap 'rm -f $$f' EXIT; \
	CGO_ENABLED=0 GOOS=linux GOARCH=arm GOARM=7 $(GO) build -trimpath -buildvcs=false $(SMALL) -tags '$(TAGS)' -o $$f ./cmd/margolite && \
	$(GO) tool nm -size -sort size $$f

clean: ## remove bin and dist
	rm -rf bin dist

help: ## print this list
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

##@ Test

test: ## test each behaviour once, in eight minutes; needs root
	build/need gcc $(TESTED)
	build/test

test-all: ## run every test, in forty minutes; needs root
	build/need gcc $(TESTED)
	build/test all

lint: ## check format, go vet and staticcheck
	build/lint

vuln: ## look for known vulnerabilities; needs the network
	build/vuln

fuzz: ## fuzz every parser for FUZZTIME=5s
	build/fuzz $(FUZZTIME)

chaos: ## inject random faults for TIME=10m; SEED=N, KIND=power (others: test/faults)
	build/need runc containerd busybox nft ip curl mke2fs
	$(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./test/faults -faults.time $(if $(filter command%,$(origin TIME)),$(TIME),10m) \
	  $(if $(SEED),-faults.seed $(SEED)) $(if $(KIND),-faults.kind $(KIND))

neighbours: ## measure what a misbehaving workload, registry or caller costs the others
	build/need runc containerd busybox nft ip curl
	MARGOLITE_NEIGHBOURS_LONG=1 $(GO) test -count=1 -timeout 2h ./test/neighbours

test-packages: packages ## install, upgrade and purge the package on a Debian of its own; needs root
	build/need debootstrap
	MARGOLITE_PACKAGES=$(CURDIR)/dist/packages $(GO) test -tags packages -count=1 -timeout 30m -v ./test/packages

test-image: ## run the agent as a container under Docker, Podman and containerd; needs root
	build/need dockerd podman runc containerd ip
	$(GO) test -count=1 -timeout 15m -v ./test/image

test-field: ## test against other WFMs: SANDBOX=DIR, TOOLKIT=DIR (test/field/README.md)
	test -n "$(SANDBOX)$(TOOLKIT)"
	build/need runc busybox nft ip redis-server
	MARGOLITE_FIELD_SANDBOX=$(SANDBOX) MARGOLITE_FIELD_TOOLKIT=$(TOOLKIT) $(GO) test -tags field -count=1 -timeout 20m -v ./test/field

test-arm: packages ## boot emulated arm64 and armhf boards with 256 MB, in an hour
	build/need qemu-system-aarch64 qemu-aarch64-static debootstrap mke2fs
	MARGOLITE_PACKAGES=$(CURDIR)/dist/packages MARGOLITE_LOGS=$(CURDIR)/dist/test-arm $(GO) test -tags armboot -count=1 -timeout 3h -v ./test/arm

test-qemu: ## run the unit tests on emulated processors, for hours; needs root
	build/need qemu-aarch64-static setpriv
	build/emulated

##@ Measure

bench: ## measure sizes, memory, writes, and Compose beside nerdctl and docker
	build/need runc busybox
	build/bench

memory: ## measure memory, also of Docker if installed; ARGS="--agent COMMAND" adds an agent
	build/need busybox runc containerd
	build/memory $(ARGS)

wear: ## measure what polls and updates write to the medium
	build/need busybox runc containerd
	build/wear $(ARGS)

year: ## simulate a year with an hour of network a week; SEED=N
	MARGOLITE_MONTHS=13 MARGOLITE_SEED=$(or $(SEED),1) $(GO) test -run TestAYear -count=1 -timeout 30m -v ./agent

SHELL := /bin/bash
