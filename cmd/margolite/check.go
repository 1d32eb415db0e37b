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

// finding is what check says about one thing.
type finding struct {
	Object string `json:"object"`
	Result string `json:"result"` // ok, warning or failed: the device cannot do its job without it
	Text   string `json:"text"`
	Mend   string `json:"mend,omitempty"`
}

const failed = "failed"

func fine(object, text string) finding { return finding{object, "ok", text, ""} }

func failure(object, text, mend string) finding { return finding{object, failed, text, mend} }

// warning is about something that the device can do without; ok where there is nothing
// to mend.
func warning(object, text, mend string) finding {
	if mend == "" {
		return fine(object, text)
	}
	return finding{object, "warning", text, mend}
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
		findings = append(findings, warning("configuration", w.Error(), "remove the key"))
	}
	findings = append(findings, deviceFindings(ctx, cfg)...)
	findings = append(findings, collectorFindings(ctx, cfg, standardCollectors())...)
	findings = append(findings, wfmFindings(ctx, cfg)...)

	failures := 0
	for _, f := range findings {
		if f.Result == failed {
			failures++
		}
		if !c.json {
			fmt.Fprintf(plainWriter{c.out}, "%-8s %s: %s%s\n", f.Result, f.Object, f.Text, prefixed("; fix: ", f.Mend))
		}
	}
	if c.json {
		if err := c.printJSON(findings); err != nil {
			return err
		}
	}
	if failures > 0 {
		return fmt.Errorf("%d of %d checks failed", failures, len(findings))
	}
	return nil
}

// deviceProblems are the findings of this device that keep workloads from running.
func deviceProblems(ctx context.Context, cfg *config.Config) []finding {
	return slices.DeleteFunc(deviceFindings(ctx, cfg), func(f finding) bool { return f.Result != failed })
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
		findings = append(findings, failure("containers", "cannot check what containers need: only root can", asRoot))
	default:
		problems := embedded.Check(ctx, filepath.Join(cfg.State.Dir, "containerd"))
		for _, p := range problems {
			if v := build.Module(); p.Object == "shim" && v != "" {
				p.Mend = "go install github.com/margolite/margolite/cmd/containerd-shim-runc-v2@" + v
			}
			f := warning(p.Object, p.Text, p.Mend)
			if p.Fatal {
				f.Result = failed
			}
			findings = append(findings, f)
		}
		findings = append(findings, kernelFindings()...)
		if len(problems) == 0 {
			findings = append(findings, fine("containers", "runc, shim, control groups and overlayfs are usable"))
		}
	}
	if os.Geteuid() == 0 { // only root sees the profiles
		text, mend := container.Confinement(container.DetectHost(ctx, "runc"), "/")
		findings = append(findings, warning("confinement", text, mend))
	}
	findings = append(findings, imageFindings(cfg)...)
	findings = append(findings, keyFindings(cfg)...)
	findings = append(findings, imageKeyFindings(cfg)...)
	findings = append(findings, notationFindings(cfg)...)
	problems := network.Check(ctx)
	for _, p := range problems {
		findings = append(findings, failure("network", p.What, p.Mend))
	}
	if len(problems) == 0 {
		findings = append(findings, fine("network", "bridges, network namespaces and nftables are usable"))
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
		return []finding{fine(object, err.Error())}
	case len(missing) == 0:
		return []finding{fine(object, file+" has every option that workloads may need")}
	}
	var findings []finding
	for _, o := range missing {
		findings = append(findings, warning(object, fmt.Sprintf("%s is not set in %s; it is needed for: %s", o.Name, file, o.For), "add runtime/kernel/margolite.cfg to the configuration of the kernel"))
	}
	return findings
}

// firewallFindings looks at what the device's own firewall does to workloads,
// which can do their job without what it drops.
func firewallFindings(ctx context.Context) []finding {
	advice, err := network.Advice(ctx)
	if err != nil {
		return []finding{fine("firewall", err.Error())}
	}
	var findings []finding
	for _, p := range advice {
		findings = append(findings, warning("firewall", p.What, p.Mend))
	}
	return findings
}

// imageFindings looks at the files that images need: those of registries, and the
// archives that the device came with.
func imageFindings(cfg *config.Config) []finding {
	var findings []finding
	for _, host := range slices.Sorted(maps.Keys(cfg.Registries)) {
		r := cfg.Registries[host]
		object := "registry " + host
		switch err := r.Check(host); {
		case err != nil:
			// Only what comes from there is out of reach.
			findings = append(findings, warning(object, err.Error(), "correct the files that registries names for it"))
		case r.Insecure:
			findings = append(findings, warning(object, "certificates are not verified", "replace insecure: true by ca, with the file of its authority"))
		default:
			findings = append(findings, fine(object, "its configuration is valid"))
		}
	}
	if cfg.Runtime.Preload == "" {
		return findings
	}
	archives, problems := image.CheckPreload(cfg.Runtime.Preload)
	for _, err := range problems {
		findings = append(findings, warning("preload", err.Error(), "create the archive again with docker save, or as an OCI layout"))
	}
	if archives > 0 && len(problems) == 0 {
		findings = append(findings, fine("preload", fmt.Sprintf("%d image archives in %s", archives, cfg.Runtime.Preload)))
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
		return []finding{warning(object, err.Error(), "install gpgv; until then packages from URLs are refused")}
	}
	if _, err := image.ReadKeys(cfg.Policy.Keys...); err != nil {
		return []finding{warning(object, err.Error(), "write public keys to it with gpg --export")}
	}
	return []finding{fine(object, fmt.Sprintf("the keys in %s are valid", strings.Join(cfg.Policy.Keys, ", ")))}
}

// imageKeyFindings looks whether images can be verified, where they have to be
// signed.
func imageKeyFindings(cfg *config.Config) []finding {
	var findings []finding
	for _, images := range slices.Sorted(maps.Keys(cfg.Policy.ImageKeys)) {
		object := fmt.Sprintf("policy.imageKeys %q", images)
		keys, err := image.ReadImageKeys(cfg.Policy.ImageKeys[images]...)
		if err != nil {
			findings = append(findings, warning(object, err.Error(), "write PEM public keys to it, as cosign generate-key-pair does; until then these images are refused"))
			continue
		}
		findings = append(findings, fine(object, fmt.Sprintf("%d keys are valid", keys.Len())))
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
		return []finding{warning(object, err.Error(), "write what notation verify reads to it; until then no package counts as signed")}
	}
	return []finding{fine(object, fmt.Sprintf("%d trust policies are valid", policies))}
}

// wfmFindings looks at who the device is and whether the WFM is within reach.
func wfmFindings(ctx context.Context, cfg *config.Config) []finding {
	if cfg.WFM.URL == "" {
		mend := "set wfm.url in the configuration"
		if len(cfg.Provision.From) > 0 {
			mend += ", or put a provisioning file into " + strings.Join(cfg.Provision.From, " or ")
		}
		return []finding{failure("wfm", "no WFM is configured", mend)}
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
		findings = append(findings, fine("identity", strings.TrimPrefix(known.Client+", valid until "+known.Expires.Format(time.RFC3339), ", ")))
	}
	for _, w := range known.Warnings {
		findings = append(findings, warning("identity", w.Text, w.Mend))
	}
	var own *identity.Error
	switch {
	case err == nil:
		return append(findings, fine("wfm", text))
	case known.Expires == nil && errors.As(err, &own):
		return append(findings, broken("identity", err))
	default:
		return append(findings, broken("wfm", err))
	}
}

// broken makes a finding of an error, with the mend if it knows one.
func broken(object string, err error) finding {
	f := failure(object, err.Error(), "check wfm in the configuration, and the network")
	var known interface{ Mend() string }
	if errors.As(err, &known) {
		f.Mend = known.Mend()
	}
	return f
}

// asRoot is the mend where nothing but the rights of root is missing.
const asRoot = "run this command as root"

// directory looks whether a directory can be written and has space.
func directory(object, dir string) finding {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return denied(failure(object, err.Error(), "make it a directory that root can write, or set "+object+" to another one"), err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return denied(failure(object, fmt.Sprintf("cannot write %s: %v", dir, err), "mount it writable"), err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return failure(object, fmt.Sprintf("cannot read the free space of %s: %v", dir, err), "repair the file system")
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	text := fmt.Sprintf("%s, %d MiB free", dir, free>>20)
	if free < leastFree {
		return warning(object, text, "free some space for the images of updates")
	}
	return fine(object, text)
}

// denied corrects the mend of a finding where the rights of root would do.
func denied(f finding, err error) finding {
	if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
		f.Mend = asRoot
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
	return []finding{failure(
		"state.run", fmt.Sprintf("the path of socket %s has %d bytes; the kernel allows %d", longest, len(longest), maxSocketPath),
		fmt.Sprintf("set state.run to a path of at most %d bytes", maxSocketPath-len(longest)+len(filepath.Clean(cfg.State.Run))),
	)}
}

func clockFinding(now time.Time) finding {
	text := now.UTC().Format(time.RFC3339)
	if now.Before(build.Time()) {
		return warning("clock", text, "set the clock; until then the WFM's certificate counts as not yet valid")
	}
	return fine("clock", text)
}

func containerdFinding(ctx context.Context, cfg *config.Config) finding {
	const mend = "start containerd 1.6 or newer, or correct runtime.containerd"
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := containerd.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
	if err != nil {
		return failure("containerd", err.Error(), mend)
	}
	defer client.Close()
	v, err := client.Version(ctx)
	if err != nil {
		return failure("containerd", err.Error(), mend)
	}
	return fine("containerd", v.Version+" at "+cfg.Runtime.Containerd)
}
