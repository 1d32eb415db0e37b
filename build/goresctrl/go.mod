module github.com/intel/goresctrl

go 1.25.0

require github.com/opencontainers/runtime-spec v1.3.0
