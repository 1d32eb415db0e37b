// Bench measures margolite: what it takes of a device's memory, how long a change
// takes from its publication until the WFM hears that it is installed, what unchanged
// polls and updates write to the medium, and how it does beside nerdctl compose and
// docker compose. It runs the real
// programs in namespaces of its own and leaves nothing behind. `make bench` runs
// it; it fails when an unchanged poll writes anything, and when agent and shims take
// too much memory.
//
// The defaults are for a quick look. `make memory` takes figures to publish, as
// others in the field do: a median over minutes, under several loads, beside Docker.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/plant"
)

// method is how things are measured.
type method struct {
	Warmup  time.Duration
	Samples int
	Over    time.Duration
	Rounds  int
	Polls   int
	Races   int
	Poll    time.Duration // while memory is measured
}

// bench is the program.
type bench struct {
	method
	dist, dir string
	memory    bool
	docker    bool
	device    bool
	contest   bool
	agent     string // of somebody else, beside Docker
	agentName string
}

func main() {
	// An interrupt of the terminal reaches every stage of isolated.Main. The
	// last one cleans up, and the others wait for it. It cleans up as well when
	// nobody reads any more.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGPIPE)
	b := &bench{}
	flag.BoolVar(&b.memory, "memory", true, "measure the memory of all that runs an application")
	flag.BoolVar(&b.docker, "docker", false, "measure the memory of Docker as well")
	flag.StringVar(&b.agent, "agent", "", "`COMMAND` line of an agent beside Docker, which it finds by DOCKER_HOST: its memory and that of its children counts")
	flag.StringVar(&b.agentName, "agent-name", "an agent", "`NAME` of that agent in the tables")
	flag.DurationVar(&b.Poll, "poll", 10*time.Second, "time between polls while memory is measured")
	flag.DurationVar(&b.Warmup, "warmup", 5*time.Second, "rest before memory is measured")
	flag.IntVar(&b.Samples, "samples", 20, "samples of memory")
	flag.DurationVar(&b.Over, "over", 20*time.Second, "time over which they are taken")
	flag.IntVar(&b.Rounds, "rounds", 10, "updates that are timed")
	flag.IntVar(&b.Polls, "polls", 100, "unchanged polls")
	flag.StringVar(&b.dist, "dist", "dist", "`DIR` with the programs of every target, as make cross leaves them")
	flag.StringVar(&b.dir, "dir", "", "`DIR` on the medium to write to (default the system's for temporary files)")
	flag.BoolVar(&b.device, "device", true, "measure the running device")
	flag.BoolVar(&b.contest, "contest", true, "measure Compose projects side by side with the peers on PATH: nerdctl, docker")
	flag.IntVar(&b.Races, "races", 5, "rounds of the contest")
	flag.Parse()
	os.Exit(isolated.Main(b))
}

// Run measures and reports. It is what runs in the namespaces.
func (b *bench) Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func (b *bench) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("containers are real here: run it as root")
	}
	if b.Samples < 1 || b.Rounds < 1 || b.Polls < 1 || b.Races < 1 {
		return errors.New("--samples, --rounds, --races and --polls have to be at least 1")
	}
	dir, err := os.MkdirTemp(b.dir, "margolite-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &report{Method: b.method}
	if r.Machine, err = describe(); err != nil {
		return err
	}
	if b.memory {
		if err := b.measureMemory(ctx, dir, r); err != nil {
			return err
		}
	}
	if b.device {
		say("building the demo application")
		application, err := plant.BuildApplication(ctx, imageVersion)
		if err != nil {
			return err
		}
		if r.Device, err = b.measureDevice(ctx, filepath.Join(dir, "d"), application); err != nil {
			return err
		}
	}
	var cut error
	if b.contest { // what is known when it is cut short is worth showing
		r.Contest, cut = b.measureContest(ctx, dir)
	}
	r.print(os.Stdout)
	return errors.Join(cut, r.verdict())
}

// native is the directory of the programs for this machine.
func (b *bench) native() string {
	native := filepath.Join(b.dist, "linux-"+runtime.GOARCH)
	if runtime.GOARCH == "arm" {
		native += "v7"
	}
	return native
}

// say tells what goes on, apart from the report.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
