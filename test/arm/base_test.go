//go:build armboot

package arm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// included are packages besides those that every Debian has and the kernel.
var included = []string{"systemd-sysv", "udev", "runc"}

// masked are units that a small machine has no use for. getty-static runs five
// consoles where there is no D-Bus.
var masked = []string{"apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_reap.service", "getty-static.service", "systemd-networkd-wait-online.service"}

// prepared are files of the base system. The tools, which differ from run to run,
// come on a disk of their own.
var prepared = map[string]string{
	"etc/fstab":    "LABEL=" + systemLabel + " / ext4 defaults 0 1\n",
	"etc/hostname": "gateway\n",
	"etc/systemd/network/wired.network": `[Match]
Type=ether
Kind=!*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
`,
	// It does not wait for udev, which takes its time.
	"etc/systemd/system/guest.service": `[Unit]
After=network.target
[Service]
ExecStartPre=mkdir -p ` + tools + `
ExecStartPre=mount -o ro LABEL=` + toolsLabel + ` ` + tools + `
ExecStart=` + tools + `/guest serve ` + guestPort + `
[Install]
WantedBy=multi-user.target
`,
	// An emulated processor is slow, and may have to share the real one.
	"etc/systemd/system.conf.d/slow.conf": "[Manager]\nDefaultTimeoutStartSec=20min\nDefaultTimeoutStopSec=20min\nDefaultDeviceTimeoutSec=20min\n",
	// The kernel finds its disk with little memory.
	"etc/initramfs-tools/conf.d/machine":            "MODULES=list\n",
	"usr/share/initramfs-tools/modules.d/margolite": "virtio_mmio\nvirtio_blk\next4\ncrc32c_generic\n",
	// It is kept after a power cut.
	"var/log/journal/.keep": "",
}

const (
	tools     = "/opt/margolite-test" // where the disk of the tools is mounted
	guestPort = ":7000"
	diskSize  = "2G"

	systemLabel = "system"
	toolsLabel  = "tools"
)

// base is a Debian that was never booted.
type base struct{ dir string }

func (b base) disk() string   { return filepath.Join(b.dir, "disk") }
func (b base) kernel() string { return filepath.Join(b.dir, "vmlinuz") }
func (b base) initrd() string { return filepath.Join(b.dir, "initrd") }

// baseOf gives the base system of a board, and makes it where there is none yet.
func baseOf(ctx context.Context, b board) (base, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return base{}, err
	}
	made := base{filepath.Join(cache, "margolite-test", "machine-"+b.key())}
	if _, err := os.Stat(made.dir); err == nil {
		return made, nil
	}
	part := base{made.dir + ".new"}
	if err := os.RemoveAll(part.dir); err != nil {
		return base{}, err
	}
	if err := os.MkdirAll(part.dir, 0o755); err != nil {
		return base{}, err
	}
	if err := part.make(ctx, b); err != nil {
		return base{}, fmt.Errorf("cannot make a Debian for %s: %w", b.arch, err)
	}
	return made, os.Rename(part.dir, made.dir)
}

// key names the base system of a board, and all that it is made of.
func (b board) key() string {
	recipe := sha256.New()
	fmt.Fprintln(recipe, release, b.kernel, included, masked, diskSize)
	for _, name := range slices.Sorted(maps.Keys(prepared)) {
		fmt.Fprintf(recipe, "%s\n%s\n", name, prepared[name])
	}
	return b.arch + "-" + hex.EncodeToString(recipe.Sum(nil)[:6])
}

func (b base) make(ctx context.Context, on board) error {
	root := filepath.Join(b.dir, "root")
	packages := strings.Join(append([]string{on.kernel}, included...), ",")
	if err := do(ctx, "debootstrap", "--foreign", "--arch="+on.arch, "--variant=minbase", "--include="+packages, release, root); err != nil {
		return err
	}
	if err := repack(ctx, filepath.Join(root, "var/cache/apt/archives")); err != nil {
		return err
	}
	for name, content := range prepared {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := configure(ctx, on, root); err != nil {
		return err
	}
	for pattern, to := range map[string]string{"vmlinuz-*": b.kernel(), "initrd.img-*": b.initrd()} {
		found, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("its kernels are %v %v, want one", found, err)
		}
		if err := do(ctx, "cp", found[0], to); err != nil {
			return err
		}
	}
	if err := do(ctx, "mke2fs", "-q", "-t", "ext4", "-L", systemLabel, "-d", root, b.disk(), diskSize); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// repack makes packages of packages that are not compressed: an emulated processor
// would take most of its time for that.
func repack(ctx context.Context, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	places := make(chan struct{}, 4)
	problems := make([]error, len(files))
	for i, file := range files {
		wg.Go(func() {
			places <- struct{}{}
			unpacked := file + ".d"
			problems[i] = errors.Join(do(ctx, "dpkg-deb", "--raw-extract", file, unpacked),
				do(ctx, "dpkg-deb", "-Znone", "--build", unpacked, file), os.RemoveAll(unpacked))
			<-places
		})
	}
	wg.Wait()
	return errors.Join(problems...)
}

// configure installs the packages, whose scripts are programs of the other
// architecture.
func configure(ctx context.Context, on board, root string) (err error) {
	unregister, err := emulate(ctx, on.user)
	if err != nil {
		return fmt.Errorf("cannot run programs of %s: %w", on.arch, err)
	}
	defer func() { err = errors.Join(err, unregister()) }()
	chroot := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "chroot", append([]string{root}, args...)...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
		// What it mounts goes with it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", args[0], err, out)
		}
		return nil
	}
	return errors.Join(
		chroot("/debootstrap/debootstrap", "--second-stage"),
		chroot("apt-get", "clean"),
		chroot("systemctl", "enable", "systemd-networkd.service", "guest.service"),
		chroot(append([]string{"systemctl", "mask"}, masked...)...),
	)
}

// registered is where the kernel is told which program runs the programs of
// another architecture.
const registered = "/proc/sys/fs/binfmt_misc"

// emulate has an emulator run programs, unless one does already, until undo.
func emulate(ctx context.Context, emulator string) (undo func() error, err error) {
	kept := func() error { return nil }
	entry := filepath.Join(registered, emulator)
	if _, err := os.Stat(filepath.Join(registered, "register")); errors.Is(err, fs.ErrNotExist) {
		if err := do(ctx, "mount", "-t", "binfmt_misc", "binfmt_misc", registered); err != nil {
			return kept, err
		}
	}
	if _, err := os.Stat(entry); err == nil {
		return kept, nil
	}
	// As its package would have done it, had it found systemd.
	rule, err := os.ReadFile(filepath.Join("/usr/lib/binfmt.d", emulator+".conf"))
	if err != nil {
		return kept, err
	}
	if err := os.WriteFile(filepath.Join(registered, "register"), rule, 0); err != nil {
		return kept, err
	}
	return func() error { return os.WriteFile(entry, []byte("-1"), 0) }, nil
}

// do runs a program and tells what it said if it fails.
func do(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", args[0], err, out)
	}
	return nil
}
