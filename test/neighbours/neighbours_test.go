package neighbours_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/neighbours"
	"github.com/margolite/margolite/test/plant"
)

const (
	// programsDir tells a process of tests where the programs are, and linesDir where
	// to keep what it measures.
	programsDir = "MARGOLITE_TEST_PROGRAMS"
	linesDir    = "MARGOLITE_TEST_LINES"
	// long asks for hogs of full size, on all containerds.
	long = "MARGOLITE_NEIGHBOURS_LONG"
)

func TestMain(m *testing.M) { os.Exit(testsIn(m)) }

// testsIn builds the programs, runs the tests, which are in processes of their own,
// and shows the matrix.
func testsIn(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root: containers are real")
		return 1
	}
	if !isolated.Outside() {
		return isolated.MainInLanes(tests{m})
	}
	lines, err := os.MkdirTemp("", "margolite-neighbours-")
	if err == nil {
		defer os.RemoveAll(lines)
		err = os.Setenv(linesDir, lines)
	}
	if err == nil && os.Getenv(programsDir) == "" {
		programs, made := os.MkdirTemp("", "margolite-neighbours-")
		defer os.RemoveAll(programs)
		err = errors.Join(made, neighbours.Build(context.Background(), programs), os.Setenv(programsDir, programs))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare what the tests run:", err)
		return 1
	}
	code := isolated.MainInLanes(tests{m})
	if all, err := neighbours.Load(lines); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else if len(all) > 0 && (testing.Verbose() || os.Getenv(long) != "") {
		fmt.Print("\n", neighbours.Markdown(all), "\n")
	}
	return code
}

// tests are what runs in namespaces of its own, with what it needs there.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if err := plant.MountShimDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return t.M.Run()
}

// backends are the containerds, with the programs of those that are not embedded.
var backends = map[string]string{"embedded": "", "debian": "/usr/bin/containerd"}

// short are the rows that make test has, on the embedded containerd alone.
var short = []string{"a registry that drips", "a stopped shim", "a flood of logs", "callers that hold the socket"}

// row is one row of the matrix: on the embedded containerd, and also on others in the
// long form or where it is told to.
func row(t *testing.T, name string, others ...string) {
	if testing.Short() && !slices.Contains(short, name) {
		t.Skip("in make test-all: the other hogs")
	}
	switch {
	case testing.Short():
		others = nil
	case os.Getenv(long) != "":
		others = []string{"debian"}
	}
	for _, backend := range append([]string{"embedded"}, others...) {
		t.Run(backend, func(t *testing.T) {
			hogs := neighbours.Hogs()
			n := slices.IndexFunc(hogs, func(h neighbours.Hog) bool { return h.Name == name })
			s := neighbours.New(t, neighbours.Options{Programs: os.Getenv(programsDir), Containerd: backends[backend], Long: os.Getenv(long) != ""})
			s.Settle()
			line := neighbours.Line{Number: n, Hog: name, Backend: backend, Measured: map[neighbours.Duty]neighbours.Cell{}}
			for duty, m := range s.Row(hogs[n]) {
				cell := neighbours.Cell{Took: m.Took}
				if m.Err != nil {
					cell.Error = m.Err.Error()
					t.Errorf("beside %s: %s after %s: %v", name, duty, m.Took, m.Err)
				}
				line.Measured[duty] = cell
			}
			line.Memory, line.Load = s.Memory(), s.Load()
			if err := s.Fits(hogs[n]); err != nil {
				t.Errorf("beside %s: %v", name, err)
			}
			if err := line.Save(os.Getenv(linesDir)); err != nil {
				t.Error(err)
			}
			t.Logf("\n%s", neighbours.Markdown([]neighbours.Line{line}))
		})
	}
}

// What everything takes with nobody in the way, to compare with.
func TestNobody(t *testing.T) {
	if os.Getenv(long) == "" {
		t.Skip("there is nobody to be kept from anything: make neighbours")
	}
	row(t, "nobody")
}

func TestARegistryThatDrips(t *testing.T)        { row(t, "a registry that drips") }
func TestARegistryThatCuts(t *testing.T)         { row(t, "a registry that cuts after each byte") }
func TestARegistryThatNeverAnswers(t *testing.T) { row(t, "a registry that never answers") }
func TestInstallationsThatHang(t *testing.T)     { row(t, "installations that hang") }
func TestAStoppedShim(t *testing.T)              { row(t, "a stopped shim", "debian") }
func TestServicesThatCrash(t *testing.T)         { row(t, "ten services that crash") }
func TestAFloodOfLogs(t *testing.T)              { row(t, "a flood of logs") }
func TestAFloodOfQuestions(t *testing.T)         { row(t, "a flood of DNS questions") }
func TestAFloodOfExecSessions(t *testing.T)      { row(t, "a flood of exec sessions") }
func TestStretchedGivenFiles(t *testing.T)       { row(t, "stretched given files") }
func TestFilledGivenFiles(t *testing.T)          { row(t, "filled given files") }
func TestLeasesOfGivenFiles(t *testing.T)        { row(t, "leases of given files") }
func TestFIFOsInRootFileSystems(t *testing.T)    { row(t, "FIFOs in root file systems", "debian") }
func TestAVolumeOfManyFiles(t *testing.T)        { row(t, "a volume of many files") }
func TestCallersThatHoldTheSocket(t *testing.T)  { row(t, "callers that hold the socket") }
func TestAWFMThatDrips(t *testing.T)             { row(t, "a WFM that drips") }
