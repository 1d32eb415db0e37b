package load_test

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/load"
)

func start(t *testing.T) (*wfmsim.Server, load.Options) {
	t.Helper()
	authority, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	svid, err := authority.IssueWFM("wfm-1")
	if err != nil {
		t.Fatal(err)
	}
	wfm, err := wfmsim.New(wfmsim.Options{
		ID: identity.ID{TrustDomain: "plant.example", WFM: "wfm-1"}, SVID: svid.TLS(), Bundle: authority.Bundle(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := wfm.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = wfm.Close() })
	return wfm, load.Options{
		Address: wfm.Address(), Path: "/api/v1/deployments", Devices: 50, Rounds: 3, AtOnce: 8,
		TLS: func(device int) (*tls.Config, error) {
			svid, err := authority.IssueClient("wfm-1", "device-"+strconv.Itoa(device))
			if err != nil {
				return nil, err
			}
			return &tls.Config{Certificates: []tls.Certificate{svid.TLS()}, InsecureSkipVerify: true}, nil
		},
		CPU: func() (time.Duration, error) { return time.Duration(0), nil },
	}
}

func TestAFleetPolls(t *testing.T) {
	wfm, o := start(t)
	r, err := load.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.First.Requests != 50 || r.Polls.Requests != 150 || r.First.Failed+r.Polls.Failed != 0 ||
		r.Polls.P50 > r.Polls.P99 || r.Polls.P99 > r.Polls.Max || r.Polls.PerSecond <= 0 {
		t.Errorf("got %+v", r)
	}
	clients := map[string]int{}
	for _, request := range wfm.Requests().Requests() {
		clients[request.Client]++
	}
	if len(clients) != 50 || clients["device-7"] != 4 {
		t.Errorf("asked by %v", clients)
	}
}

func TestFailuresAreCounted(t *testing.T) {
	wfm, o := start(t)
	if _, err := wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Cut, Skip: 60, Times: 5}); err != nil {
		t.Fatal(err)
	}
	r, err := load.Run(t.Context(), o)
	if err != nil || r.Polls.Failed != 5 || r.Polls.Requests != 145 {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := wfm.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := load.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "nothing succeeded") {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := load.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	o.Devices = load.MaxDevices + 1
	if _, err := load.Run(t.Context(), o); err == nil {
		t.Error("a fleet without bounds")
	}
}

// jittered waits a time within the interval, and after failures one within a
// growing bound.
func jittered(device int) load.Next {
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
}

func TestArrivalsAreSpreadByJitter(t *testing.T) {
	outage := load.Outage{
		Devices: 1000, Begin: time.Unix(0, 0), From: 5*time.Minute + 30*time.Second, To: 20 * time.Minute, Watch: 10 * time.Minute,
		Failure: 10 * time.Millisecond,
		Pace:    func(int) load.Next { return load.Fixed(time.Minute) },
	}
	herd, err := load.Arrivals(outage)
	if err != nil {
		t.Fatal(err)
	}
	if herd.Peak() != 1000 {
		t.Errorf("devices that start together poll together: peak %d\n%s", herd.Peak(), herd)
	}
	outage.Pace = jittered
	spread, err := load.Arrivals(outage)
	if err != nil {
		t.Fatal(err)
	}
	again, err := load.Arrivals(outage)
	if err != nil || spread.String() != again.String() {
		t.Errorf("the same twice: %v", err)
	}
	if peak, mean := spread.Peak(), spread.Mean(); float64(peak) > 3*mean {
		t.Errorf("peak %d, mean %.1f\n%s", peak, mean, spread)
	}
	if within, ok := spread.RecoveredWithin(1); !ok || within > 5*time.Minute {
		t.Errorf("recovered within %s, %v", within, ok)
	}
	if _, ok := spread.RecoveredWithin(1.5); ok {
		t.Error("more than all recovered")
	}
}
