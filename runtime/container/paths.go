package container

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/log"
)

// paths tells where everything lies outside containerd, see the package comment.
type paths struct{ o Options }

// VolumeDir is the directory of a volume's content, if the volume is a directory of ours.
func (p *paths) VolumeDir(project, volume string) string {
	return filepath.Join(p.volumesDir(), project, volume)
}

func (p *paths) volumesDir() string { return filepath.Join(p.o.StateDir, "volumes") }

// volumeDir is the directory of a volume that a container of project mounts.
func (p *paths) volumeDir(project string, v Volume) string {
	owner := cmp.Or(v.Project, project)
	if v.Type != "" {
		return p.mountPoint(owner, v)
	}
	return p.VolumeDir(owner, v.Name)
}

// mountPoint differs for a changed definition: both are in use while services are replaced.
func (p *paths) mountPoint(owner string, v Volume) string {
	definition := slices.Concat([]string{v.Type, v.Device}, v.Options)
	sum := sha256.Sum256([]byte(strings.Join(definition, "\x00")))
	return filepath.Join(p.o.RunDir, "volumes", owner, v.Name+anonymousMark+hex.EncodeToString(sum[:4]))
}

// keptFiles holds the content of configs and secrets, for root only.
func (p *paths) keptFiles(project, id string) string {
	return filepath.Join(p.o.StateDir, "files", project, id)
}

// placedFiles is where configs and secrets are mounted from.
func (p *paths) placedFiles(id string) string { return filepath.Join(p.o.RunDir, "files", id) }

// sharedMemory is a /dev/shm that others share: a file system, not part of an IPC namespace.
func (p *paths) sharedMemory(id string) string { return filepath.Join(p.o.RunDir, "shm", id) }

// stdin is a FIFO for open input. The shim holds its other end: readers wait without an agent.
func (p *paths) stdin(id string) string { return filepath.Join(p.o.RunDir, "stdin", id) }

// execDir holds the FIFOs of a command. Its name identifies what a killed agent left.
func (p *paths) execDir(id, execID string) string {
	return filepath.Join(p.o.RunDir, "exec", id+"."+execID)
}

// LogPath is the file with the output of a container.
func (p *paths) LogPath(id string) string { return log.Path(p.logDir(), id) }

func (p *paths) logs() []string {
	files, _ := filepath.Glob(p.LogPath("*")) // the pattern is valid
	return files
}

func (p *paths) logDir() string {
	return cmp.Or(p.o.LogDir, filepath.Join(p.o.RunDir, "logs"))
}

func (p *paths) logKeep(l compose.Logging) log.Keep {
	return log.Keep{MaxSize: l.MaxSize, MaxFile: l.MaxFile}.Within(p.o.LogKeep)
}

// runcRoot must not survive a reboot: IDs are used again, and runc refuses known ones.
func (p *paths) runcRoot() string { return filepath.Join(p.o.RunDir, "runc") }

func (p *paths) mountDir(id string) string { return filepath.Join(p.o.RunDir, "mounts", id) }

// subpathDir is where a part of a volume is bound during a start. New cleans up.
func (p *paths) subpathDir(id string, n int) string { return p.mountDir(id + "." + strconv.Itoa(n)) }

// sourceDir is where a path of the device is bound during a start. New cleans up.
func (p *paths) sourceDir(id string, n int) string { return p.mountDir(id + ".s" + strconv.Itoa(n)) }

func (p *paths) nerdctlDir(id string) string {
	address := containerd.Address(p.o.Client)
	if resolved, err := filepath.EvalSymlinks(address); err == nil {
		address = resolved
	}
	sum := sha256.Sum256([]byte(address))
	return filepath.Join(p.o.RunDir, "nerdctl", hex.EncodeToString(sum[:4]), "containers", p.o.Namespace, id)
}
