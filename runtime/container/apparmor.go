package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	// DefaultProfile is the AppArmor profile of containers whose service names none.
	DefaultProfile = "margolite-default"

	appArmorEnabled = "/sys/module/apparmor/parameters/enabled"
	// loadedProfiles lists the kernel's AppArmor profiles as "name (mode)".
	loadedProfiles = "/sys/kernel/security/apparmor/profiles"
	profilesDir    = "/etc/apparmor.d" // of files that profiles include
	profileParser  = "apparmor_parser"
)

// profileText is the default profile, as strict as Docker's: it allows what a container needs,
// but not changing the device through /proc, /sys or mounts.
const profileText = `profile ` + DefaultProfile + ` flags=(attach_disconnected,mediate_deleted) {
%[1]s
  network,
  capability,
  file,
  umount,

  # Who stops and watches the container, and its own processes.
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (receive) peer="%[2]s",
  signal (send,receive) peer=` + DefaultProfile + `,
  ptrace (readby,tracedby) peer="%[2]s",
  ptrace (trace,tracedby,read,readby) peer=` + DefaultProfile + `,

  deny mount,

  # In /proc, the directories of processes and /proc/sys/kernel/shm* are left.
  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9s]*,s[^y]*,sy[^s]*,sys[^/]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{[^s]**,s[^h]**,sh[^m]**} w,
  deny @{PROC}/{kcore,sysrq-trigger} rwklx,

  # In /sys, /sys/fs/cgroup is left.
  deny /sys/{[^f]**,f[^s]**,fs/[^c]**,fs/c[^g]**,fs/cg[^r]**} wklx,
  deny /sys/{firmware,devices/virtual/powercap,kernel/security}/** rwklx,
}
`

// profileOf returns the default profile for the AppArmor files of the device at root.
// agent is the agent's own confinement: "unconfined" or "name (mode)".
func profileOf(root, agent string) string {
	agent, _, _ = strings.Cut(strings.TrimSpace(agent), " (")
	if agent == "" || strings.Contains(agent, `"`) {
		agent = unconfined
	}
	has := func(file string) bool { return exists(filepath.Join(root, profilesDir, file)) }
	head, base := "@{PROC}=/proc/\n", ""
	if has("tunables/global") {
		head = "#include <tunables/global>\n"
	}
	if has("abi/3.0") { // pins the meaning of rules, even for a newer parser
		head = "abi <abi/3.0>,\n" + head
	}
	if has("abstractions/base") {
		base = "  #include <abstractions/base>"
	}
	return head + fmt.Sprintf(profileText, base, agent)
}

// loadProfile loads the default profile into the kernel, which a reboot unloads.
func loadProfile(ctx context.Context, root string) error {
	if loaded, err := hasProfile(filepath.Join(root, loadedProfiles), DefaultProfile); loaded || err != nil {
		return err
	}
	parser, err := exec.LookPath(profileParser)
	if err != nil {
		return fmt.Errorf("cannot load profile: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	agent, _ := os.ReadFile("/proc/self/attr/current") // unconfined if unreadable
	cmd := exec.CommandContext(ctx, parser, "--replace", "--skip-cache")
	cmd.Stdin = strings.NewReader(profileOf(root, string(agent)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot load profile: %s: %w: %.200s", profileParser, err, bytes.TrimSpace(out))
	}
	return nil
}

// profile returns the default profile if the kernel has it now, else "".
func (h *thisHost) profile(ctx context.Context) string {
	if !h.get(ctx).AppArmor {
		return ""
	}
	if err := loadProfile(ctx, "/"); err != nil {
		h.noProfile.Do(func() { h.logger.Warn("containers get no AppArmor profile by default", "error", err) })
		return ""
	}
	return DefaultProfile
}

// Confinement tells how the kernel confines containers by default on the device at root, and
// how to fix what is missing.
func Confinement(h Host, root string) (text, mend string) {
	var parts []string
	if h.Seccomp {
		parts = append(parts, "seccomp filter")
	}
	if h.AppArmor {
		loaded, err := hasProfile(filepath.Join(root, loadedProfiles), DefaultProfile)
		if !loaded && err == nil {
			_, err = exec.LookPath(profileParser)
		}
		if err == nil {
			parts = append(parts, "AppArmor profile "+DefaultProfile)
		} else {
			parts = append(parts, fmt.Sprintf("no AppArmor profile (%v)", err))
			mend = "install " + profileParser + " and mount securityfs"
		}
	}
	if firstWord(filepath.Join(root, "/sys/fs/selinux/enforce")) == "1" {
		parts = append(parts, "SELinux context of the agent")
	}
	if len(parts) == 0 {
		return "the kernel has neither seccomp nor AppArmor", ""
	}
	return strings.Join(parts, ", "), mend
}

func hasProfile(file, name string) (bool, error) {
	list, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("cannot list profiles: %w", err)
	}
	return strings.Contains("\n"+string(list), "\n"+name+" ("), nil
}
