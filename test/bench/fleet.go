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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/load"
)

// fleet is what many devices ask of one WFM.
type fleet struct {
	Load *load.Result `json:"load"`
	// After is when polls arrive after an outage of an hour, in simulated time:
	// at a fixed rate, and with jitter and growing bounds.
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

// fleetPaces are ways to poll once a minute: the plainest, and the one that is
// asked for, with its intervals spread and its retries jittered in full under a
// bound that doubles up to five minutes.
func fleetPaces() map[string]func(int) load.Next {
	return map[string]func(int) load.Next{
		"fixed": func(int) load.Next { return load.Fixed(time.Minute) },
		"jittered": func(device int) load.Next {
			random := rand.New(rand.NewPCG(1, uint64(device)))
			bound := time.Second
			return func(now time.Time, failed bool) time.Time {
				if !failed {
					bound = time.Second
					return now.Add(30*time.Second + time.Duration(random.Int64N(int64(time.Minute))))
				}
				bound = min(2*bound, 5*time.Minute)
				return now.Add(1 + time.Duration(random.Int64N(int64(bound))))
			}
		},
	}
}

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
	for _, name := range []string{"fixed", "jittered"} {
		h := f.After[name]
		within, _ := h.RecoveredWithin(0.99)
		p.line("  after an outage of an hour, %s: at most %d polls in a second, %.0f on average, 99%% are back after %s",
			name, h.Peak(), h.Mean(), within.Round(time.Second))
	}
}
