package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/runtime/external"
	"github.com/margolite/margolite/runtime/network"
)

const (
	// leastFree is the free space below which an update of any size is doubtful.
	leastFree = 64 << 20
	// expiryNotice is how long before its end a certificate is worth a word.
	expiryNotice = 14 * 24 * time.Hour
)

// earliest is before every release of this program: a clock that shows less is wrong.
var earliest = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// finding is the outcome of looking at one thing.
type finding struct {
	object string
	text   string
	mend   string // empty: nothing is wrong
	fatal  bool   // the device cannot do its job without it
}

// check says whether this device can do the job: one line for each thing, and
// the mend for what is missing.
func (c *cli) check(ctx context.Context, args []string) error {
	f := c.flags("check")
	c.jsonFlag(f)
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	cfg, err := c.load(true)
	if err != nil {
		return err
	}
	findings := append(deviceFindings(ctx, cfg), wfmFindings(ctx, cfg)...)

	failed := 0
	type line struct {
		Object string `json:"object"`
		Result string `json:"result"` // ok, warning or failed
		Text   string `json:"text"`
		Mend   string `json:"mend,omitempty"`
	}
	lines := make([]line, len(findings))
	for i, f := range findings {
		result := "ok"
		switch {
		case f.fatal:
			result = "failed"
			failed++
		case f.mend != "":
			result = "warning"
		}
		lines[i] = line{f.object, result, f.text, f.mend}
	}
	if c.json {
		if err := c.printJSON(lines); err != nil {
			return err
		}
	} else {
		for _, l := range lines {
			fmt.Fprintf(c.out, "%-8s %s: %s%s\n", l.Result, l.Object, l.Text, prefixed("; mend: ", l.Mend))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

// deviceProblems are the findings of this device that keep workloads from running.
func deviceProblems(ctx context.Context, cfg *config.Config) []finding {
	var problems []finding
	for _, f := range deviceFindings(ctx, cfg) {
		if f.fatal {
			problems = append(problems, f)
		}
	}
	return problems
}

// deviceFindings looks at what workloads need.
func deviceFindings(ctx context.Context, cfg *config.Config) []finding {
	findings := []finding{directory("state.dir", cfg.State.Dir), directory("state.run", cfg.State.Run), clock(time.Now())}
	if cfg.Runtime.Containerd == config.Embedded {
		problems := embedded.Check(filepath.Join(cfg.State.Dir, "containerd"))
		for _, p := range problems {
			findings = append(findings, finding{p.Object, p.Text, p.Mend, p.Fatal})
		}
		if len(problems) == 0 {
			findings = append(findings, finding{object: "containers", text: "runc, shim, control groups and overlayfs are usable"})
		}
	} else {
		findings = append(findings, containerdFinding(ctx, cfg))
	}
	problems := network.Check(ctx)
	for _, p := range problems {
		findings = append(findings, finding{"network", p.What, p.Mend, true})
	}
	if len(problems) == 0 {
		findings = append(findings, finding{object: "network", text: "bridges, network namespaces and nftables are usable"})
	}
	return findings
}

// wfmFindings looks at who the device is and whether the WFM is within reach.
func wfmFindings(ctx context.Context, cfg *config.Config) []finding {
	if cfg.WFM.URL == "" {
		return []finding{{"wfm", "no WFM is configured", "set wfm.url", true}}
	}
	way := newConnection(cfg, slog.New(slog.DiscardHandler))
	peer, err := way.Identity()
	if err != nil {
		return []finding{broken("identity", err)}
	}
	findings := []finding{{object: "identity", text: fmt.Sprintf("%s, valid until %s", way.identity.ClientID(), way.identity.NotAfter().Format(time.RFC3339))}}
	for _, w := range way.identity.Warnings() {
		findings = append(findings, finding{"identity", w.Error(), w.Mend(), false})
	}
	if left := time.Until(way.identity.NotAfter()); left > 0 && left < expiryNotice {
		findings = append(findings, finding{"identity", fmt.Sprintf("the certificate expires in %s", left.Round(time.Hour)), "have it renewed", false})
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m, err := way.Manifest(ctx, "")
	if err != nil {
		return append(findings, broken("wfm", err))
	}
	return append(findings, finding{object: "wfm", text: fmt.Sprintf("%s publishes manifest version %d with %d deployments", peer, m.Version, len(m.Deployments))})
}

// broken makes a finding of an error, with the mend if it knows one.
func broken(object string, err error) finding {
	f := finding{object, err.Error(), "look at wfm.* in the configuration and at the network", true}
	var known *identity.Error
	if errors.As(err, &known) {
		f.mend = known.Mend()
	}
	return f
}

// directory looks whether a directory can be written and has space.
func directory(object, dir string) finding {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return finding{object, err.Error(), "let margolite's user create " + dir, true}
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return finding{object, fmt.Sprintf("%s cannot be written: %v", dir, err), "mount it writable, for margolite's user", true}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return finding{object, fmt.Sprintf("cannot look at the file system of %s: %v", dir, err), "mend the file system", true}
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	f := finding{object: object, text: fmt.Sprintf("%s, %d MiB free", dir, free>>20)}
	if free < leastFree {
		f.mend = "free some space; updates need room for new images"
	}
	return f
}

// clock looks whether the clock can be right.
func clock(now time.Time) finding {
	f := finding{object: "clock", text: now.UTC().Format(time.RFC3339)}
	if now.Before(earliest) {
		f.mend = "set the clock; until then the WFM's certificate is not valid yet"
	}
	return f
}

// containerdFinding looks at a containerd that is not ours.
func containerdFinding(ctx context.Context, cfg *config.Config) finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := external.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
	if err != nil {
		return finding{"containerd", err.Error(), "start containerd 1.6 or newer, or correct runtime.containerd", true}
	}
	defer client.Close()
	v, err := client.Version(ctx)
	if err != nil {
		return finding{"containerd", err.Error(), "start containerd 1.6 or newer, or correct runtime.containerd", true}
	}
	return finding{object: "containerd", text: v.Version + " at " + cfg.Runtime.Containerd}
}
