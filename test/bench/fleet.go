package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/load"
)

// fleet is what many devices ask of one WFM.
type fleet struct {
	Load *load.Result `json:"load"`
	// After is when polls arrive after an outage of an hour, in simulated time.
	After map[string]*load.Histogram `json:"arrivals"`
}

// fleetRounds is how often each device asks whether there is anything new.
const fleetRounds = 4

func (b *bench) measureFleet(ctx context.Context, dir string) (_ *fleet, err error) {
	say("letting %d devices poll", b.Fleet)
	dir = filepath.Join(dir, "fleet")
	command := exec.CommandContext(ctx, b.wfmsim, "serve", "--dir", dir,
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--registry", "127.0.0.1:0")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	said, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", b.wfmsim, err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", b.wfmsim, err)
	}
	defer func() {
		err = errors.Join(err, command.Process.Signal(syscall.SIGTERM), command.Wait())
	}()
	address, err := addressOf(said)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "authority.pem"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the authority of the fleet: %w", err)
	}
	authority, err := pki.ParseAuthority("wfmsim.example", text, time.Now())
	if err != nil {
		return nil, err
	}
	f := &fleet{After: map[string]*load.Histogram{}}
	f.Load, err = load.Run(ctx, load.Options{
		Address: address, Path: "/api/v1/deployments", Devices: b.Fleet, Rounds: fleetRounds,
		TLS: func(device int) (*tls.Config, error) {
			svid, err := authority.IssueClient("wfmsim", "device-"+strconv.Itoa(device))
			if err != nil {
				return nil, err
			}
			// Whom it talks to is known: this is about the other side's work.
			config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
			config.Certificates = []tls.Certificate{svid.TLS()}
			return config, nil
		},
		CPU: func() (time.Duration, error) { return cpuOf(command.Process.Pid) },
	})
	if err != nil {
		return nil, err
	}
	for name, pace := range fleetPaces() {
		f.After[name], err = load.Arrivals(load.Outage{
			Devices: b.Fleet, Begin: time.Unix(0, 0), From: 10 * time.Minute, To: 70 * time.Minute, Watch: 10 * time.Minute,
			Failure: 100 * time.Millisecond, Pace: pace,
		})
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// addressOf is where a wfmsim listens, as it says when it has started.
func addressOf(said io.Reader) (string, error) {
	lines := bufio.NewScanner(said)
	for address := ""; lines.Scan(); {
		switch fields := strings.Fields(lines.Text()); {
		case len(fields) == 2 && fields[0] == "WFM":
			at, err := url.Parse(fields[1])
			if err != nil {
				return "", err
			}
			address = at.Host
		case len(fields) == 2 && fields[0] == "config": // the last line
			return address, nil
		}
	}
	return "", errors.New("the WFM of the fleet did not start")
}

// The ways to poll once a minute: the plainest, and the agent's own.
const (
	fixedPace = "a fixed rate"
	agentPace = "the agent's pace"
)

func fleetPaces() map[string]func(int) load.Next {
	return map[string]func(int) load.Next{
		fixedPace: func(int) load.Next { return load.Fixed(minutely.Interval) },
		agentPace: paced,
	}
}

// minutely are the rules of a device that is not told otherwise.
var minutely = pace.Rules{Interval: time.Minute}

// paced is a device that decides as the agent does when to poll.
func paced(device int) load.Next {
	random := rand.New(rand.NewPCG(1, uint64(device)))
	var begin time.Time
	var polls *pace.Polls
	return func(now time.Time, failed bool) time.Time {
		var err error
		if failed {
			err = errUnreachable
		}
		if polls == nil {
			begin = now
			polls = pace.NewPolls(pace.Moment{Wall: now}, minutely, func(n time.Duration) time.Duration {
				return time.Duration(random.Int64N(int64(n)))
			}, true)
		} else {
			polls.Done(pace.Moment{Wall: now, Up: now.Sub(begin)}, err)
		}
		wait := polls.Plan(pace.Moment{Wall: now, Up: now.Sub(begin)}, pace.Hold{}).Wait
		return now.Add(max(wait, 1))
	}
}

var errUnreachable = errors.New("connection refused")

func short(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func (p *printer) fleet(f *fleet) {
	p.heading("A fleet of %d devices, each with a certificate and a connection of its own, %d at once",
		f.Load.Devices, f.Load.AtOnce)
	for _, phase := range []struct {
		name string
		load.Phase
	}{{"handshake and manifest", f.Load.First}, {"unchanged poll", f.Load.Polls}} {
		p.line("  %-24s %6d, %d failed: %.0f/s, p50 %s, p99 %s; %s of the WFM's processor each", phase.name,
			phase.Requests, phase.Failed, phase.PerSecond, short(phase.P50), short(phase.P99), short(phase.CPU))
	}
	p.heading("Polls that arrive after an outage of an hour, %d devices, an interval of a minute, in simulated time", f.Load.Devices)
	names := []string{fixedPace, agentPace}
	for _, name := range names {
		h := f.After[name]
		within, _ := h.RecoveredWithin(0.99)
		p.line("  %-18s at most %4d in a second, %3.0f on average, 99%% are back after %s",
			name, h.Peak(), h.Mean(), within.Round(time.Second))
	}
	const (
		bar  = 10 * time.Second
		long = 30
	)
	bars := map[string][]int{}
	highest := 1
	for _, name := range names {
		h := f.After[name]
		for chunk := range slices.Chunk(h.Counts[:min(len(h.Counts), int(3*time.Minute/h.Width))], int(bar/h.Width)) {
			sum := 0
			for _, n := range chunk {
				sum += n
			}
			bars[name] = append(bars[name], sum)
			highest = max(highest, sum)
		}
	}
	p.line("  %8s  %6s %-*s  %6s %s", "after", "", long, names[0], "", names[1])
	for i := range bars[names[0]] {
		row := fmt.Sprintf("  %8s", time.Duration(i)*bar)
		for _, name := range names {
			n := bars[name][i]
			row += fmt.Sprintf("  %6d %-*s", n, long, strings.Repeat("#", (n*long+highest-1)/highest))
		}
		p.line("%s", row)
	}
}
