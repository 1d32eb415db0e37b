package e2e

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// nobody is a user without rights.
const nobody = 65534

// Whoever else is on the device reads and writes nothing of what the agent keeps,
// whatever the umask that it is started with, and workloads have that of Docker.
func TestOthersOnTheDeviceReadAndWriteNothing(t *testing.T) {
	long(t, "the rest of the program")
	for _, mask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", mask), func(t *testing.T) {
			onBackends(t, func(t *testing.T, r *rig) {
				check(t, os.Chmod(r.dir, 0o755)) // the plant's is closed, /var/lib and /run are not
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
		check(r.t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
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
	out, err := cmd.Output()
	check(r.t, err)
	return strings.Fields(string(out))
}

// What proves who the device is, and what parameters say to workloads, is in no
// line of the log at its most talkative, and in nothing that members of the group
// can ask the agent; not either where a server refuses or is silent.
func TestNoSecretIsTold(t *testing.T) {
	long(t, "the rest of the program")
	const parameter = "correct-horse-battery"
	for name, c := range map[string]struct {
		way     plant.Way
		secrets []string
	}{
		"mutual TLS": {plant.Way{}, nil},
		"a password": {plant.Way{Gateway: "Basic"}, []string{plant.GatewaySecret, base64.StdEncoding.EncodeToString([]byte(plant.GatewaySecret))}},
		"a token":    {plant.Way{Gateway: "Bearer"}, []string{plant.GatewayToken}},
		"a repository": {plant.Way{Repository: true}, []string{
			plant.RepositoryToken, base64.StdEncoding.EncodeToString([]byte("x-access-token:" + plant.RepositoryToken)),
		}},
		"signed requests": {plant.Way{Revision: wfmsim.RC2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			secrets := append(c.secrets, parameter)
			r := newRigBy(t, c.way)
			keys, err := filepath.Glob(filepath.Join(r.dir, "identity", "*.key"))
			check(t, err)
			for _, key := range keys {
				pem, err := os.ReadFile(key)
				check(t, err)
				secrets = append(secrets, strings.Split(string(pem), "\n")[1])
			}
			r.running()
			d := r.Deployment(demoID, map[string]any{"GREETING": parameter})
			r.publish(d)
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed)
			r.delivered()
			if r.Repository != nil {
				r.Repository.SetToken("another one")
			}
			for _, f := range []fault.Fault{{Kind: fault.Answer, Status: 401}, {Kind: fault.Answer, Status: 500}} {
				_, err := r.WFM.Faults().Inject(f)
				check(t, err)
				if err := r.Control().Sync(t.Context()); err == nil {
					t.Errorf("it worked in spite of %+v", f)
				}
				r.WFM.Faults().Clear("")
			}

			told := map[string]string{}
			for _, command := range []string{"status --json", "status", "history --json", "capabilities --json", "check", "compose ps"} {
				told[command], _ = r.margolite(strings.Fields(command)...)
			}
			for what, file := range map[string]string{
				"the log": r.LogFile(), "the command line": r.procOf("cmdline"), "the environment": r.procOf("environ"),
			} {
				content, err := os.ReadFile(file)
				check(t, err)
				told[what] = string(content)
			}
			for what, text := range told {
				for _, secret := range secrets {
					if strings.Contains(text, secret) {
						t.Errorf("%s tells %q", what, secret)
					}
				}
			}
			if r.Repository != nil {
				r.Repository.SetToken("x-access-token:" + plant.RepositoryToken)
			}
		})
	}
}

func (r *rig) procOf(file string) string {
	return filepath.Join("/proc", strconv.Itoa(r.Agent()), file)
}
