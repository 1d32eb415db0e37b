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
	"github.com/margolite/margolite/cmd/command"
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
	Object string `json:"object"`
	Result string `json:"result"` // ok, warning or failed: the device cannot do its job without it
	Text   string `json:"text"`
	Mend   string `json:"mend,omitempty"`
}

const failed = "failed"

type findings []finding

func (f *findings) add(object, result, text, mend string) {
	*f = append(*f, finding{object, result, text, mend})
}

func (f *findings) fine(object, text string) { f.add(object, "ok", text, "") }

func (f *findings) failure(object, text, mend string) { f.add(object, failed, text, mend) }

// warning reports a problem that the device can live with; ok if there is no fix to give.
func (f *findings) warning(object, text, mend string) {
	if mend == "" {
		f.fine(object, text)
		return
	}
	f.add(object, "warning", text, mend)
}

func (f *findings) judge(object string, err error, mend, text string) {
	if err != nil {
		f.warning(object, err.Error(), mend)
		return
	}
	f.fine(object, text)
}

// check shows whether this device can do the job: a line per aspect, with the fix.
func (c *cli) check(f *command.Flags) command.Action {
	c.jsonFlag(f)
	return func(ctx context.Context, _ []string) error {
		cfg, err := c.load(true)
		if err != nil {
			return err
		}
		var all findings
		for _, w := range cfg.Warnings() {
			all.warning("configuration", w.Error(), "remove the key")
		}
		all.device(ctx, cfg)
		all.collector(ctx, cfg, []string{"127.0.0.1:4318", "127.0.0.1:4317"}) // OTLP over HTTP and gRPC
		all.wfm(ctx, cfg)

		failures := 0
		for _, f := range all {
			if f.Result == failed {
				failures++
			}
			if !c.json {
				fmt.Fprintf(plainWriter{c.out}, "%-8s %s: %s%s\n", f.Result, f.Object, f.Text, prefixed("; fix: ", f.Mend))
			}
		}
		if c.json {
			if err := c.printJSON(all); err != nil {
				return err
			}
		}
		if failures > 0 {
			return fmt.Errorf("%d of %d checks failed", failures, len(all))
		}
		return nil
	}
}

func (f *findings) device(ctx context.Context, cfg *config.Config) {
	f.directory("state.dir", cfg.State.Dir)
	f.directory("state.run", cfg.State.Run)
	f.socketPath(cfg)
	f.group(cfg)
	f.clock(time.Now())
	switch {
	case cfg.Runtime.Containerd != config.Embedded:
		f.containerd(ctx, cfg)
	case os.Geteuid() != 0: // nothing else that could be found would be right
		f.failure("containers", "cannot check what containers need: only root can", asRoot)
	default:
		f.embedded(ctx, cfg)
	}
	if os.Geteuid() == 0 { // only root sees the profiles
		text, mend := container.Confinement(container.DetectHost(ctx, "runc"), "/")
		f.warning("confinement", text, mend)
	}
	f.registries(cfg)
	f.preload(cfg)
	f.keys(cfg)
	f.imageKeys(cfg)
	if dir := cfg.Policy.Notation; dir != "" {
		policies, err := notation.Check(dir)
		f.judge("policy.notation", err, "write what notation verify reads to it; until then no package counts as signed",
			fmt.Sprintf("%d trust policies are valid", policies))
	}
	problems := network.Check(ctx)
	for _, p := range problems {
		f.failure("network", p.What, p.Mend)
	}
	if len(problems) == 0 {
		f.fine("network", "bridges, network namespaces and nftables are usable")
		f.firewall(ctx)
	}
}

func (f *findings) embedded(ctx context.Context, cfg *config.Config) {
	problems := embedded.Check(ctx, filepath.Join(cfg.State.Dir, "containerd"))
	for _, p := range problems {
		if v := build.Module(); p.Object == "shim" && v != "" {
			p.Mend = "go install github.com/margolite/margolite/cmd/containerd-shim-runc-v2@" + v
		}
		if p.Fatal {
			f.failure(p.Object, p.Text, p.Mend)
		} else {
			f.warning(p.Object, p.Text, p.Mend)
		}
	}
	f.kernel()
	if len(problems) == 0 {
		f.fine("containers", "runc, shim, control groups and overlayfs are usable")
	}
}

// kernel checks the kernel's configuration for what workloads may need. Practical tests count more:
// a missing option may be unnecessary in this kernel version.
func (f *findings) kernel() {
	const object = "kernel"
	file, missing, err := kernel.Missing("/")
	switch {
	case errors.Is(err, fs.ErrNotExist): // it does not tell, and few do
	case err != nil:
		f.fine(object, err.Error())
	case len(missing) == 0:
		f.fine(object, file+" has every option that workloads may need")
	}
	for _, o := range missing {
		f.warning(object, fmt.Sprintf("%s is not set in %s; it is needed for: %s", o.Name, file, o.For), "add runtime/kernel/margolite.cfg to the configuration of the kernel")
	}
}

// firewall checks what the device's own firewall drops, which workloads can do without.
func (f *findings) firewall(ctx context.Context) {
	advice, err := network.Advice(ctx)
	if err != nil {
		f.fine("firewall", err.Error())
	}
	for _, p := range advice {
		f.warning("firewall", p.What, p.Mend)
	}
}

// registries checks the files for registries. Without them only those registries are out of reach.
func (f *findings) registries(cfg *config.Config) {
	for _, host := range slices.Sorted(maps.Keys(cfg.Registries)) {
		r := cfg.Registries[host]
		object := "registry " + host
		err := r.Check(host)
		if err == nil && r.Insecure {
			f.warning(object, "certificates are not verified", "replace insecure: true by ca, with the file of its authority")
			continue
		}
		f.judge(object, err, "correct the files that registries names for it", "its configuration is valid")
	}
}

func (f *findings) preload(cfg *config.Config) {
	const object = "preload"
	if cfg.Runtime.Preload == "" {
		return
	}
	archives, problems := image.CheckPreload(cfg.Runtime.Preload)
	for _, err := range problems {
		f.warning(object, err.Error(), "create the archive again with docker save, or as an OCI layout")
	}
	if archives > 0 && len(problems) == 0 {
		f.fine(object, fmt.Sprintf("%d image archives in %s", archives, cfg.Runtime.Preload))
	}
}

// keys checks the configured keys, if any: documents may name a key, but few do.
func (f *findings) keys(cfg *config.Config) {
	const object = "policy.keys"
	if len(cfg.Policy.Keys) == 0 {
		return
	}
	if err := pgp.Find(); err != nil {
		f.warning(object, err.Error(), "install gpgv; until then packages from URLs are refused")
		return
	}
	_, err := image.ReadKeys(cfg.Policy.Keys...)
	f.judge(object, err, "write public keys to it with gpg --export", fmt.Sprintf("the keys in %s are valid", strings.Join(cfg.Policy.Keys, ", ")))
}

func (f *findings) imageKeys(cfg *config.Config) {
	for _, images := range slices.Sorted(maps.Keys(cfg.Policy.ImageKeys)) {
		object := fmt.Sprintf("policy.imageKeys %q", images)
		keys, err := image.ReadImageKeys(cfg.Policy.ImageKeys[images]...)
		f.judge(object, err, "write PEM public keys to it, as cosign generate-key-pair does; until then these images are refused",
			fmt.Sprintf("%d keys are valid", keys.Len()))
	}
}

func (f *findings) wfm(ctx context.Context, cfg *config.Config) {
	if cfg.WFM.URL == "" {
		mend := "set wfm.url in the configuration"
		if len(cfg.Provision.From) > 0 {
			mend += ", or put a provisioning file into " + strings.Join(cfg.Provision.From, " or ")
		}
		f.failure("wfm", "no WFM is configured", mend)
		return
	}
	way, _, err := openUplink(ctx, cfg, slog.New(slog.DiscardHandler), uplink.Device{Records: noRecords{}})
	if err != nil {
		f.broken("wfm", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	text, err := way.Probe(ctx)
	known := way.Describe()
	if !known.Expires.IsZero() {
		f.fine("identity", strings.TrimPrefix(known.Client+", valid until "+known.Expires.Format(time.RFC3339), ", "))
	}
	for _, w := range known.Warnings {
		f.warning("identity", w.Text, w.Mend)
	}
	var own *identity.Error
	switch {
	case err == nil:
		f.fine("wfm", text)
	case known.Expires.IsZero() && errors.As(err, &own):
		f.broken("identity", err)
	default:
		f.broken("wfm", err)
	}
}

func (f *findings) broken(object string, err error) {
	mend := "check wfm in the configuration, and the network"
	var known interface{ Mend() string }
	if errors.As(err, &known) {
		mend = known.Mend()
	}
	f.failure(object, err.Error(), mend)
}

const asRoot = "run this command as root"

// unlessDenied returns the fix for an error, unless root's permissions would suffice.
func unlessDenied(err error, mend string) string {
	if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
		return asRoot
	}
	return mend
}

func (f *findings) directory(object, dir string) {
	var fs unix.Statfs_t
	if err := os.MkdirAll(dir, 0o711); err != nil {
		f.failure(object, err.Error(), unlessDenied(err, "make it a directory that root can write, or set "+object+" to another one"))
		return
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		f.failure(object, fmt.Sprintf("cannot write %s: %v", dir, err), unlessDenied(err, "mount it writable"))
		return
	}
	if err := unix.Statfs(dir, &fs); err != nil {
		f.failure(object, fmt.Sprintf("cannot read the free space of %s: %v", dir, err), "repair the file system")
		return
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	mend := ""
	if free < leastFree {
		mend = "free some space for the images of updates"
	}
	f.warning(object, fmt.Sprintf("%s, %d MiB free", dir, free>>20), mend)
}

// maxSocketPath bounds a socket's path: the kernel has 108 bytes with the final zero.
const maxSocketPath = 107

func (f *findings) socketPath(cfg *config.Config) {
	longest := socketPath(cfg)
	if cfg.Runtime.Containerd == config.Embedded {
		longest = filepath.Join(cfg.State.Run, "containerd", "containerd.sock.ttrpc")
	}
	if len(longest) > maxSocketPath {
		f.failure(
			"state.run", fmt.Sprintf("the path of socket %s has %d bytes; the kernel allows %d", longest, len(longest), maxSocketPath),
			fmt.Sprintf("set state.run to a path of at most %d bytes", maxSocketPath-len(longest)+len(filepath.Clean(cfg.State.Run))),
		)
	}
}

func (f *findings) clock(now time.Time) {
	mend := ""
	if now.Before(build.Time()) {
		mend = "set the clock; until then the WFM's certificate counts as not yet valid"
	}
	f.warning("clock", now.UTC().Format(time.RFC3339), mend)
}

func (f *findings) containerd(ctx context.Context, cfg *config.Config) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := containerd.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
	version := ""
	if err == nil {
		defer client.Close()
		v, versionErr := client.Version(ctx)
		version, err = v.Version, versionErr
	}
	if err != nil {
		f.failure("containerd", err.Error(), "start containerd 1.6 or newer, or correct runtime.containerd")
		return
	}
	f.fine("containerd", version+" at "+cfg.Runtime.Containerd)
}
