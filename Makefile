# margolite: build, test and try. Every target works from a clean clone with
# Go and make; what else a target needs it installs with build/need.

GO      ?= go
TAGS    := grpcnotrace,osusergo,netgo,no_rdt
# The shim speaks ttrpc alone, and the slim flavour gRPC of its own; containerd
# inside needs that of grpc-go and must not have this tag.
SHIM    := no_grpc,osusergo,netgo
SLIM    := no_grpc,osusergo,netgo,slim
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
# Of the commit, never of the build: the same commit gives the same bytes.
TIME    ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),$(SOURCE_DATE_EPOCH))
STAMP   := github.com/margolite/margolite/build
LDFLAGS := -s -w -X $(STAMP).version=$(VERSION) -X $(STAMP).commit=$(COMMIT) -X $(STAMP).time=$(TIME)
# Copies of small functions are a tenth of the agent, which waits most of the
# time. What works through bytes keeps them: build/README.md has what it costs.
FAST    := runtime/... internal/... crypto/... hash/... compress/... math/... sync/... unicode/... encoding/binary github.com/klauspost/...
SMALL   := -gcflags=all=-l $(FAST:%=-gcflags=%=)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

TARGETS := linux/amd64 linux/arm64 linux/arm/7 linux/arm/6 linux/riscv64

.PHONY: all build test test-packages lint fuzz bench demo cross packages sizes clean

all: build

build: ## bin/margolite, its shim, its init, and the development WFM
	$(BUILD) $(SMALL) -tags '$(TAGS)' -o bin/ ./cmd/margolite
	$(BUILD) -tags '$(SHIM)' -o bin/ ./cmd/containerd-shim-runc-v2
	$(BUILD) -o bin/ ./cmd/margolite-init
	$(BUILD) -o bin/ ./cmd/wfmsim

test: ## everything, on real containerd and runc; needs root
	build/need runc containerd docker-registry busybox nft ip openssl gpg gpgv curl
	$(GO) test -timeout 40m ./...

lint: ## format, vet, staticcheck, for both flavours
	build/lint

fuzz: ## every parser for FUZZTIME (5s)
	build/fuzz $(FUZZTIME)

bench: build ## sizes, memory, times beside nerdctl and docker, bytes written
	build/need runc busybox
	build/bench

demo: build ## the whole story on this machine; KEEP=1 leaves it running, END=DIR ends that; STORY=approval tells another
	build/need runc
	$(BUILD) -o bin/ ./test/demo
	bin/demo $(if $(STORY),-$(STORY)) $(if $(KEEP),-keep) $(if $(END),-end $(END))

cross: ## every target, both flavours, into dist/
	@set -e; for t in $(TARGETS); do \
	  IFS=/ read -r os arch arm <<< "$$t"; out=dist/$$os-$$arch$${arm:+v$$arm}; \
	  echo "$$out"; mkdir -p $$out/slim; \
	  export GOOS=$$os GOARCH=$$arch GOARM=$$arm; \
	  $(BUILD) $(SMALL) -tags '$(TAGS)' -o $$out/ ./cmd/margolite; \
	  $(BUILD) -tags '$(SHIM)' -o $$out/ ./cmd/containerd-shim-runc-v2; \
	  $(BUILD) -o $$out/ ./cmd/margolite-init; \
	  $(BUILD) $(SMALL) -tags '$(SLIM)' -o $$out/slim/ ./cmd/margolite; \
	done

packages: cross build ## deb, ipk, tar archives and an image, into dist/packages, looked through by what lints them
	build/need dpkg-deb lintian shellcheck mandoc zsh fish
	packaging/build '$(VERSION)' '$(TIME)'

test-packages: packages ## installs them on a Debian of their own, runs an application, purges; needs root
	build/need debootstrap
	MARGOLITE_PACKAGES=$(CURDIR)/dist/packages $(GO) test -tags packages -count=1 -timeout 30m -v ./test/packages

sizes: ## what both flavours are made of on arm v7, as in build/README.md
	@$(GO) build -o bin/sizes ./build/sizes
	@set -e; export GOOS=linux GOARCH=arm GOARM=7 SMALL='$(SMALL)'; \
	echo 'slim: '; bin/sizes -tags '$(SLIM)' ./cmd/margolite; \
	echo 'full: '; bin/sizes -tags '$(TAGS)' ./cmd/margolite

clean:
	rm -rf bin dist

SHELL := /bin/bash
