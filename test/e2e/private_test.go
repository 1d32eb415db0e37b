package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// nobody is a user without rights.
const nobody = 65534

const secretsFile = `
services:
  tools:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    secrets:
      - {source: token, uid: "1000", gid: "1001", mode: 0440}
      - key
secrets:
  token: {file: ./token.txt}
  key: {environment: API_KEY}
`

// Whoever else is on the device reads and writes nothing of what the agent keeps,
// whatever the umask that it is started with, and workloads have that of Docker.
func TestOthersOnTheDeviceReadAndWriteNothing(t *testing.T) {
	long(t, "modes of files")
	for _, mask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", mask), func(t *testing.T) {
			onBackends(t, func(t *testing.T, r *rig) {
				expect.Check(t, os.Chmod(r.Dir(), 0o755)) // the plant's is closed, /var/lib and /run are not
				before := unix.Umask(mask)
				defer unix.Umask(before)
				r.running()
				unix.Umask(before)
				d := r.application(labID, "1.0.0", secretsFile, ociimage.Files{"token.txt": []byte("a token")})
				d.Parameters["API_KEY"] = "a key"
				r.install(d)
				out, err := r.margolite("exec", labID, "tools", "--", "sh", "-c", "umask")
				if err != nil || out != "0022\n" && r.Containerd() == 0 { // else it is that of the other containerd
					t.Errorf("the umask of a workload: %q, %v", out, err)
				}

				may := r.opensAsNobody()
				if !slices.Contains(may, r.LockDir()) {
					var way []string // to it
					for dir := r.LockDir(); len(dir) > 1; dir = filepath.Dir(dir) {
						info, err := os.Lstat(dir)
						way = append(way, fmt.Sprint(dir, " ", info.Mode(), err))
					}
					t.Errorf("an ordinary user finds no more than %q, and not what is open to everybody: %q", may, way)
				}
				may = slices.DeleteFunc(may, func(path string) bool {
					place, _, _ := strings.Cut(strings.TrimPrefix(path, r.RunDir()+"/"), "/")
					// locks is where workloads and programs of the site hold updates up; hosts
					// are the names that containers know, which users in there read; forwarding
					// and netns are names of links and of namespaces, which nobody can enter.
					return slices.Contains([]string{"locks", "hosts", "forwarding", "netns"}, place)
				})
				for _, path := range may {
					info, err := os.Lstat(path)
					t.Errorf("an ordinary user may read or write %s: %v, %v", path, info.Mode(), err)
				}
			})
		})
	}
}

// opensAsNobody are the files that a user without rights may read and the sockets
// and directories that he may write, of all that there are: he may know any name.
func (r *rig) opensAsNobody() []string {
	r.t.Helper()
	var all strings.Builder
	for _, dir := range []string{r.StateDir(), r.RunDir()} {
		expect.Check(r.t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil { // else it vanished meanwhile
				fmt.Fprintln(&all, path)
			}
			return nil
		}))
	}
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", `while IFS= read -r path; do
		if test -f "$path" -a -r "$path" || test ! -L "$path" -a -w "$path"; then echo "$path"; fi
	done`)
	cmd.Stdin = strings.NewReader(all.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out := expect.Value(cmd.Output())(r.t)
	return strings.Fields(string(out))
}

// Every conversation is begun by the device: the agent listens on no port, but
// on the sockets in its directory, which are for local users.
func TestPOL12POL13NobodyOnTheNetworkReachesTheAgent(t *testing.T) {
	long(t, "sockets of the agent")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	own := make(map[string]bool) // inodes of the agent's sockets
	descriptors := expect.Value(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.Agent())))(t)
	for _, d := range descriptors {
		target, _ := os.Readlink(d) // what was closed meanwhile is no socket
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	expect.Require(t, len(own) != 0, "the agent has no sockets at all")
	const listening = "0A"
	for _, file := range []string{"tcp", "tcp6"} {
		lines := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", r.Agent(), file)))(t)
		for line := range strings.Lines(string(lines)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == listening && own[f[9]] {
				t.Errorf("the agent listens on %s port %s", file, f[1])
			}
		}
	}
}
