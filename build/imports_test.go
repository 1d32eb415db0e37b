package build_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

const module = "github.com/margolite/margolite"

// Imports go one way: cmd -> agent -> {runtime, store, capability, policy}.
// The last four know neither each other nor what is above them.
func TestImportsGoOneWay(t *testing.T) {
	rooms := []string{"cmd", "agent", "runtime", "store", "capability", "policy"}
	may := map[string][]string{
		"cmd":   {"cmd", "agent", "runtime", "store", "capability", "policy", "build"},
		"agent": {"agent", "runtime", "store", "capability", "policy"},
	}
	for _, leaf := range rooms[2:] {
		may[leaf] = []string{leaf}
	}
	for _, line := range goList(t, "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...") {
		fields := strings.Fields(line)
		from := room(fields[0])
		allowed, ruled := may[from]
		if !ruled {
			continue
		}
		for _, imported := range fields[1:] {
			to := room(imported)
			if to == "" || to == "test" && fields[0] == module+"/cmd/wfmsim" {
				continue
			}
			if !slices.Contains(allowed, to) {
				t.Errorf("%s must not import %s", fields[0], imported)
			}
		}
	}
}

// The documents of the wire and the socket, the clock and who the device is are
// known to others and know nobody, except that the identity service answers with
// documents of the wire. How a PEM file is read is one rule for identities, registries and
// keys: its room knows nothing but the standard library, so that anyone may know it.
func TestDocumentsKnowNobody(t *testing.T) {
	for p, known := range map[string][]string{
		"agent/margo":     nil,
		"agent/control":   nil,
		"agent/clock":     nil,
		"agent/identity":  {module + "/agent/margo", module + "/runtime/pemfile"},
		"runtime/pemfile": nil,
	} {
		for _, line := range goList(t, "-f", "{{join .Imports \"\\n\"}}", "./"+p) {
			foreign := strings.HasPrefix(line, module) || p == "runtime/pemfile" && strings.Contains(line, ".")
			expect.True(t, !foreign || slices.Contains(known, line), "%s must not import %s", p, line)
		}
	}
}

// containerd's server has no stable packages: one room touches it. Its client and its
// core types are everybody's.
func TestOneRoomTouchesTheServerOfContainerd(t *testing.T) {
	const server = "github.com/containerd/containerd/v2/plugins/"
	for _, line := range goList(t, "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...") {
		fields := strings.Fields(line)
		for _, imported := range fields[1:] {
			if strings.HasPrefix(imported, server) && fields[0] != module+"/runtime/embedded" {
				t.Errorf("%s must not import %s", fields[0], imported)
			}
		}
	}
}

// What is never to be linked, and why.
func TestUnwantedPackagesAreNotLinked(t *testing.T) {
	unwanted := map[string]string{
		"html/template":             "keeps every exported method alive",
		"net/http/pprof":            "a debug server that nobody asked for",
		"expvar":                    "registers itself on the default server",
		"k8s.io/":                   "this is the agent without Kubernetes",
		"sigs.k8s.io/":              "this is the agent without Kubernetes",
		"github.com/docker/docker/": "this is the agent without Docker",
		"github.com/spf13/cobra":    "two and a half megabytes of command line",
		"github.com/containerd/containerd/v2/internal/cri": "no CRI",
		"github.com/intel/goresctrl/pkg/rdt":               "the tag no_rdt leaves it out, and client_golang with it",
	}
	for _, program := range []string{"./cmd/margolite", "./cmd/containerd-shim-runc-v2"} {
		expectNotLinked(t, program, "grpcnotrace,osusergo,netgo,no_rdt", unwanted)
	}
}

// ofBlockIO is what containerd's task service links to read classes of block I/O
// through goresctrl. containerd has no build tag yet that leaves it out.
var ofBlockIO = []string{
	"k8s.io/apimachinery/pkg/api/resource",
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct",
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/internal/modes",
	"sigs.k8s.io/json",
	"sigs.k8s.io/json/internal/golang/encoding/json",
	"sigs.k8s.io/yaml",
}

func expectNotLinked(t *testing.T, program, tags string, unwanted map[string]string) {
	t.Helper()
	for _, dep := range goList(t, "-deps", "-tags", tags, program) {
		for prefix, why := range unwanted {
			expect.True(t, !strings.HasPrefix(dep, prefix) || slices.Contains(ofBlockIO, dep), "%s links %s: %s", program, dep, why)
		}
	}
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(args, " "), err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// room is the folder at the top that a package of ours lives in, or "".
func room(path string) string {
	rest, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	top, _, _ := strings.Cut(rest, "/")
	return top
}
