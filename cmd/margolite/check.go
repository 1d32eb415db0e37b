package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/kernel"
	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/runtime/notation"
	"github.com/margolite/margolite/runtime/pgp"
)

// leastFree is the free space below which an update of any size is doubtful.
const leastFree = 64 << 20

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
	var findings []finding
	for _, w := range cfg.Warnings() {
		findings = append(findings, finding{"configuration", w.Error(), "remove the key", false})
	}
	findings = append(findings, deviceFindings(ctx, cfg)...)
	findings = append(findings, collectorFindings(ctx, cfg, standardCollectors())...)
	findings = append(findings, wfmFindings(ctx, cfg)...)

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
			fmt.Fprintf(plainWriter{c.out}, "%-8s %s: %s%s\n", l.Result, l.Object, l.Text, prefixed("; fix: ", l.Mend))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

// deviceProblems are the findings of this device that keep workloads from running.
func deviceProblems(ctx context.Context, cfg *config.Config) []finding {
	return slices.DeleteFunc(deviceFindings(ctx, cfg), func(f finding) bool { return !f.fatal })
}

func deviceFindings(ctx context.Context, cfg *config.Config) []finding {
	findings := []finding{directory("state.dir", cfg.State.Dir), directory("state.run", cfg.State.Run)}
	findings = append(findings, socketPaths(cfg)...)
	findings = append(findings, groupFindings(cfg)...)
	findings = append(findings, clockFinding(time.Now()))
	switch {
	case cfg.Runtime.Containerd != config.Embedded:
		findings = append(findings, containerdFinding(ctx, cfg))
	case os.Geteuid() != 0: // nothing else that could be found would be right
		findings = append(findings, finding{"containers", "cannot check what containers need: only root can", asRoot, true})
	default:
		problems := embedded.Check(ctx, filepath.Join(cfg.State.Dir, "containerd"))
		for _, p := range problems {
			if v := build.Module(); p.Object == "shim" && v != "" {
				p.Mend = "go install github.com/margolite/margolite/cmd/containerd-shim-runc-v2@" + v
			}
			findings = append(findings, finding{p.Object, p.Text, p.Mend, p.Fatal})
		}
		findings = append(findings, kernelFindings()...)
		if len(problems) == 0 {
			findings = append(findings, finding{object: "containers", text: "runc, shim, control groups and overlayfs are usable"})
		}
	}
	if os.Geteuid() == 0 { // only root sees the profiles
		text, mend := container.Confinement(container.DetectHost(ctx, "runc"), "/")
		findings = append(findings, finding{object: "confinement", text: text, mend: mend})
	}
	findings = append(findings, imageFindings(cfg)...)
	findings = append(findings, keyFindings(cfg)...)
	findings = append(findings, imageKeyFindings(cfg)...)
	findings = append(findings, notationFindings(cfg)...)
	problems := network.Check(ctx)
	for _, p := range problems {
		findings = append(findings, finding{"network", p.What, p.Mend, true})
	}
	if len(problems) == 0 {
		findings = append(findings, finding{object: "network", text: "bridges, network namespaces and nftables are usable"})
		findings = append(findings, firewallFindings(ctx)...)
	}
	return findings
}

// kernelFindings compares the configuration of the kernel with what workloads may
// need. What was tried out counts more: here an option may be missing that this
// version of the kernel does without.
func kernelFindings() []finding {
	const object = "kernel"
	file, missing, err := kernel.Missing("/")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it does not tell, and few do
	case err != nil:
		return []finding{{object, err.Error(), "", false}}
	case len(missing) == 0:
		return []finding{{object: object, text: file + " has every option that workloads may need"}}
	}
	var findings []finding
	for _, o := range missing {
		findings = append(findings, finding{object, fmt.Sprintf("%s is not set in %s; it is needed for: %s", o.Name, file, o.For), "add runtime/kernel/margolite.cfg to the configuration of the kernel", false})
	}
	return findings
}

// firewallFindings looks at what the device's own firewall does to workloads,
// which can do their job without what it drops.
func firewallFindings(ctx context.Context) []finding {
	advice, err := network.Advice(ctx)
	if err != nil {
		return []finding{{"firewall", err.Error(), "", false}}
	}
	var findings []finding
	for _, p := range advice {
		findings = append(findings, finding{"firewall", p.What, p.Mend, false})
	}
	return findings
}

// imageFindings looks at the files that images need: those of registries, and the
// archives that the device came with.
func imageFindings(cfg *config.Config) []finding {
	var findings []finding
	registries := registriesOf(cfg)
	for _, host := range slices.Sorted(maps.Keys(registries)) {
		r := registries[host]
		object := "registry " + host
		switch err := r.Check(host); {
		case err != nil:
			// Only what comes from there is out of reach.
			findings = append(findings, finding{object, err.Error(), "correct the files that registries names for it", false})
		case r.Insecure:
			findings = append(findings, finding{object, "certificates are not verified", "replace insecure: true by ca, with the file of its authority", false})
		default:
			findings = append(findings, finding{object: object, text: "its configuration is valid"})
		}
	}
	if cfg.Runtime.Preload == "" {
		return findings
	}
	archives, problems := image.CheckPreload(cfg.Runtime.Preload)
	for _, err := range problems {
		findings = append(findings, finding{"preload", err.Error(), "create the archive again with docker save, or as an OCI layout", false})
	}
	if archives > 0 && len(problems) == 0 {
		findings = append(findings, finding{object: "preload", text: fmt.Sprintf("%d image archives in %s", archives, cfg.Runtime.Preload)})
	}
	return findings
}

// keyFindings looks whether packages can be verified, where the configuration says
// by which keys.
func keyFindings(cfg *config.Config) []finding {
	const object = "policy.keys"
	if len(cfg.Policy.Keys) == 0 {
		return nil // a document may name a key, and few do
	}
	if err := pgp.Find(); err != nil {
		return []finding{{object, err.Error(), "install gpgv; until then packages from URLs are refused", false}}
	}
	if _, err := image.ReadKeys(cfg.Policy.Keys...); err != nil {
		return []finding{{object, err.Error(), "write public keys to it with gpg --export", false}}
	}
	return []finding{{object: object, text: fmt.Sprintf("the keys in %s are valid", strings.Join(cfg.Policy.Keys, ", "))}}
}

// imageKeyFindings looks whether images can be verified, where they have to be
// signed.
func imageKeyFindings(cfg *config.Config) []finding {
	var findings []finding
	for _, images := range slices.Sorted(maps.Keys(cfg.Policy.ImageKeys)) {
		object := fmt.Sprintf("policy.imageKeys %q", images)
		keys, err := image.ReadImageKeys(cfg.Policy.ImageKeys[images]...)
		if err != nil {
			findings = append(findings, finding{object, err.Error(), "write PEM public keys to it, as cosign generate-key-pair does; until then these images are refused", false})
			continue
		}
		findings = append(findings, finding{object: object, text: fmt.Sprintf("%d keys are valid", keys.Len())})
	}
	return findings
}

// notationFindings looks whether packages can be verified as a trust policy wants it,
// where one is configured.
func notationFindings(cfg *config.Config) []finding {
	const object = "policy.notation"
	if cfg.Policy.Notation == "" {
		return nil
	}
	policies, err := notation.Check(cfg.Policy.Notation)
	if err != nil {
		return []finding{{object, err.Error(), "write what notation verify reads to it; until then no package counts as signed", false}}
	}
	return []finding{{object: object, text: fmt.Sprintf("%d trust policies are valid", policies)}}
}

// wfmFindings looks at who the device is and whether the WFM is within reach.
func wfmFindings(ctx context.Context, cfg *config.Config) []finding {
	if cfg.WFM.URL == "" {
		mend := "set wfm.url in the configuration"
		if len(cfg.Provision.From) > 0 {
			mend += ", or put a provisioning file into " + strings.Join(cfg.Provision.From, " or ")
		}
		return []finding{{"wfm", "no WFM is configured", mend, true}}
	}
	way, _, err := openUplink(ctx, cfg, slog.New(slog.DiscardHandler), uplink.Device{Records: noRecords{}})
	if err != nil {
		return []finding{broken("wfm", err)}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	text, err := way.Probe(ctx)
	known := way.Describe()
	var findings []finding
	if known.Expires != nil {
		findings = append(findings, finding{object: "identity", text: fmt.Sprintf("%svalid until %s", suffixed(known.Client, ", "), known.Expires.Format(time.RFC3339))})
	}
	for _, w := range known.Warnings {
		findings = append(findings, finding{"identity", w.Text, w.Mend, false})
	}
	var own *identity.Error
	switch {
	case err == nil:
		return append(findings, finding{object: "wfm", text: text})
	case known.Expires == nil && errors.As(err, &own):
		return append(findings, broken("identity", err))
	default:
		return append(findings, broken("wfm", err))
	}
}

func suffixed(s, suffix string) string {
	if s == "" {
		return ""
	}
	return s + suffix
}

// broken makes a finding of an error, with the mend if it knows one.
func broken(object string, err error) finding {
	f := finding{object, err.Error(), "check wfm in the configuration, and the network", true}
	var known interface{ Mend() string }
	if errors.As(err, &known) {
		f.mend = known.Mend()
	}
	return f
}

// asRoot is the mend where nothing but the rights of root is missing.
const asRoot = "run this command as root"

// directory looks whether a directory can be written and has space.
func directory(object, dir string) finding {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return denied(finding{object, err.Error(), "make it a directory that root can write, or set " + object + " to another one", true}, err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return denied(finding{object, fmt.Sprintf("cannot write %s: %v", dir, err), "mount it writable", true}, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return finding{object, fmt.Sprintf("cannot read the free space of %s: %v", dir, err), "repair the file system", true}
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	f := finding{object: object, text: fmt.Sprintf("%s, %d MiB free", dir, free>>20)}
	if free < leastFree {
		f.mend = "free some space for the images of updates"
	}
	return f
}

// denied corrects the mend of a finding where the rights of root would do.
func denied(f finding, err error) finding {
	if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
		f.mend = asRoot
	}
	return f
}

// maxSocketPath is how long the path of a socket may be: the kernel has 108
// bytes for it, the last of which is zero.
const maxSocketPath = 107

// socketPaths looks whether the paths of the sockets in state.run are short enough.
func socketPaths(cfg *config.Config) []finding {
	longest := socketPath(cfg)
	if cfg.Runtime.Containerd == config.Embedded {
		longest = filepath.Join(cfg.State.Run, "containerd", "containerd.sock.ttrpc")
	}
	if len(longest) <= maxSocketPath {
		return nil
	}
	return []finding{{
		"state.run", fmt.Sprintf("the path of socket %s has %d bytes; the kernel allows %d", longest, len(longest), maxSocketPath),
		fmt.Sprintf("set state.run to a path of at most %d bytes", maxSocketPath-len(longest)+len(filepath.Clean(cfg.State.Run))), true,
	}}
}

func clockFinding(now time.Time) finding {
	f := finding{object: "clock", text: now.UTC().Format(time.RFC3339)}
	if now.Before(build.Time()) {
		f.mend = "set the clock; until then the WFM's certificate counts as not yet valid"
	}
	return f
}

func containerdFinding(ctx context.Context, cfg *config.Config) finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := containerd.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
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
