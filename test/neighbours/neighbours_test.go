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
	// programsDir tells a process of tests where the programs are.
	programsDir = "MARGOLITE_TEST_PROGRAMS"
	// long asks for hogs of full size, on all containerds, and for duties in time.
	long = "MARGOLITE_NEIGHBOURS_LONG"
)

func TestMain(m *testing.M) { os.Exit(testsIn(m)) }

// testsIn builds the programs and runs the tests, which are in processes of their own.
func testsIn(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root: containers are real")
		return 1
	}
	if isolated.Outside() && os.Getenv(programsDir) == "" {
		dir, err := os.MkdirTemp("", "margolite-neighbours-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = errors.Join(neighbours.Build(context.Background(), dir), os.Setenv(programsDir, dir))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot build what the tests run:", err)
			return 1
		}
	}
	return isolated.MainInLanes(tests{m})
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

// short are the hogs that make test has, on the embedded containerd alone.
var short = []string{"a registry that drips", "a stopped shim", "a flood of logs", "callers that hold the socket"}

// beside carries out all duties beside a hog: on the embedded containerd, and also on
// others in the long form or where it is told to.
func beside(t *testing.T, name string, others ...string) {
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
			hog := hogs[slices.IndexFunc(hogs, func(h neighbours.Hog) bool { return h.Name == name })]
			s := neighbours.New(t, neighbours.Options{
				Programs: os.Getenv(programsDir), Containerd: backends[backend], Short: testing.Short(), Long: os.Getenv(long) != "",
			})
			s.Settle()
			s.Beside(hog)
		})
	}
}

// What everything takes with nobody in the way, to compare with.
func TestNobody(t *testing.T) {
	if os.Getenv(long) == "" {
		t.Skip("there is nobody to be kept from anything: make neighbours")
	}
	beside(t, "nobody")
}

func TestARegistryThatDrips(t *testing.T)        { beside(t, "a registry that drips") }
func TestARegistryThatCuts(t *testing.T)         { beside(t, "a registry that cuts after each byte") }
func TestARegistryThatNeverAnswers(t *testing.T) { beside(t, "a registry that never answers") }
func TestInstallationsThatHang(t *testing.T)     { beside(t, "installations that hang") }
func TestAStoppedShim(t *testing.T)              { beside(t, "a stopped shim", "debian") }
func TestServicesThatCrash(t *testing.T)         { beside(t, "ten services that crash") }
func TestAFloodOfLogs(t *testing.T)              { beside(t, "a flood of logs") }
func TestAFloodOfQuestions(t *testing.T)         { beside(t, "a flood of DNS questions") }
func TestAFloodOfExecSessions(t *testing.T)      { beside(t, "a flood of exec sessions") }
func TestStretchedGivenFiles(t *testing.T)       { beside(t, "stretched given files") }
func TestFilledGivenFiles(t *testing.T)          { beside(t, "filled given files") }
func TestLeasesOfGivenFiles(t *testing.T)        { beside(t, "leases of given files") }
func TestFIFOsInRootFileSystems(t *testing.T)    { beside(t, "FIFOs in root file systems", "debian") }
func TestAVolumeOfManyFiles(t *testing.T)        { beside(t, "a volume of many files") }
func TestCallersThatHoldTheSocket(t *testing.T)  { beside(t, "callers that hold the socket") }
func TestAWFMThatDrips(t *testing.T)             { beside(t, "a WFM that drips") }
