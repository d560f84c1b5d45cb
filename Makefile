# The tools that the targets need are pinned here and built into bin/ once.
GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION       := v0.12.0

GOLANGCI_LINT := bin/golangci-lint-$(GOLANGCI_LINT_VERSION)
GOFUMPT       := bin/gofumpt-$(GOFUMPT_VERSION)
PROGRAMS      := worker shoal agent dockerfilter bench

.DEFAULT_GOAL := help
.PHONY: help demo test whole race chaos takeover fuzz lint fmt image runsc engine build tools bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: engine build ## create a sandbox, run a program in it, remove it
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE && demo/demo.sh

test: runsc engine ## run every test, with real Docker and the race detector
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE && scripts/test.sh

whole: runsc engine ## run what has long times and large numbers in its full length
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE SHOAL_WHOLE=1 && \
		go test ./docker ./e2e -run '^TestConformance|^TestManyCommands|^TestEgressBigDownload' -p 1 -count=1 -v -timeout 60m

race: ## run the tests that need no Docker, with the race detector
	@go test -short -race -shuffle=on -timeout 5m ./...

chaos: engine ## hurt a fleet, CHAOS_SECONDS=180 CHAOS_SEED= CHAOS_BREAK=fence|offset|idempotency|lock
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE CHAOS_SECONDS=$${CHAOS_SECONDS:-180} && \
		go test $(if $(CHAOS_BREAK),-tags chaosbreak) ./e2e -run '^TestChaos$$' -count=1 -v -timeout 30m

takeover: engine ## measure each takeover 20 times, TAKEOVERS=20
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE TAKEOVERS=$${TAKEOVERS:-20} && \
		go test ./e2e -run '^(TestTakeoverAfter|TestEgressAfterTakeover)' -parallel 1 -count=1 -v -timeout 30m

fuzz: ## fuzz what reads foreign bytes, FUZZTIME=20s each
	@scripts/fuzz.sh

lint: tools ## check format, rules, modules and the arm64 build
	@scripts/lint.sh $(GOLANGCI_LINT) $(GOFUMPT)

fmt: tools ## format the code
	@$(GOLANGCI_LINT) fmt ./...

image: engine ## build the sandbox image, shoal-sandbox:dev
	@image/build.sh >/dev/null

runsc: # before the engine, so that its first start knows the runtime
	@scripts/runsc.sh

engine: ## make sure that a Docker engine answers
	@scripts/engine.sh

build: ## build the programs into bin/
	@for p in $(PROGRAMS); do if [ -d cmd/$$p ]; then go build -o bin/$$p ./cmd/$$p || exit 1; fi; done

bench: engine build ## compare Shoal with docker exec on this machine
	@SHOAL_IMAGE=$$(image/build.sh) && export SHOAL_IMAGE && bin/bench

clean: ## remove what was built; the base image stays
	@rm -rf bin
	@scripts/clean.sh

tools: $(GOLANGCI_LINT) $(GOFUMPT)

$(GOLANGCI_LINT):
	@echo "shoal: building golangci-lint $(GOLANGCI_LINT_VERSION)"
	@GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv bin/golangci-lint $@

$(GOFUMPT):
	@echo "shoal: building gofumpt $(GOFUMPT_VERSION)"
	@GOBIN=$(CURDIR)/bin go install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
	@mv bin/gofumpt $@
