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

// paths are where everything of a container lies outside containerd; the doc comment of
// the package has them all.
type paths struct{ o Options }

// VolumeDir is where the content of a volume lies that is a directory of ours.
func (p *paths) VolumeDir(project, volume string) string {
	return filepath.Join(p.volumesDir(), project, volume)
}

func (p *paths) volumesDir() string { return filepath.Join(p.o.StateDir, "volumes") }

// volumeDir is where a volume is that a container of project mounts.
func (p *paths) volumeDir(project string, v Volume) string {
	owner := cmp.Or(v.Project, project)
	if v.Type != "" {
		return p.mountPoint(owner, v)
	}
	return p.VolumeDir(owner, v.Name)
}

// mountPoint is where a volume with a type is mounted. A definition that changed
// has another: while services are replaced one by one, both are in use.
func (p *paths) mountPoint(owner string, v Volume) string {
	definition := slices.Concat([]string{v.Type, v.Device}, v.Options)
	sum := sha256.Sum256([]byte(strings.Join(definition, "\x00")))
	return filepath.Join(p.o.RunDir, "volumes", owner, v.Name+anonymousMark+hex.EncodeToString(sum[:4]))
}

// keptFiles is where the content of configs and secrets lies, for root alone.
func (p *paths) keptFiles(project, id string) string {
	return filepath.Join(p.o.StateDir, "files", project, id)
}

// placedFiles is where the files lie that are mounted.
func (p *paths) placedFiles(id string) string { return filepath.Join(p.o.RunDir, "files", id) }

// sharedMemory is where the /dev/shm of a container is that shares it with
// others. A namespace of ipc has none: it is a file system.
func (p *paths) sharedMemory(id string) string { return filepath.Join(p.o.RunDir, "shm", id) }

// stdin is the FIFO that a container reads whose standard input stays open. The
// shim holds its other end as well: a reader waits, whether or not an agent runs.
func (p *paths) stdin(id string) string { return filepath.Join(p.o.RunDir, "stdin", id) }

// execDir is where the FIFOs of a command are. Its name says what a killed agent left.
func (p *paths) execDir(id, execID string) string {
	return filepath.Join(p.o.RunDir, "exec", id+"."+execID)
}

// LogPath is the file that holds the output of a container.
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

// runcRoot is where runc keeps what it knows of containers. It is gone together
// with everything else that a reboot ends: ids are used again, and runc refuses
// one that it still knows.
func (p *paths) runcRoot() string { return filepath.Join(p.o.RunDir, "runc") }

func (p *paths) mountDir(id string) string { return filepath.Join(p.o.RunDir, "mounts", id) }

// subpathDir is where the n-th part of a volume is bound for the start of a
// container. It lies among what New sweeps.
func (p *paths) subpathDir(id string, n int) string { return p.mountDir(id + "." + strconv.Itoa(n)) }

// sourceDir is where the n-th path that a container mounts is bound for its start.
// It lies among what New sweeps.
func (p *paths) sourceDir(id string, n int) string { return p.mountDir(id + ".s" + strconv.Itoa(n)) }

// nerdctlDir is where nerdctl looks for the files of a container.
func (p *paths) nerdctlDir(id string) string {
	address := containerd.Address(p.o.Client)
	if resolved, err := filepath.EvalSymlinks(address); err == nil {
		address = resolved
	}
	sum := sha256.Sum256([]byte(address))
	return filepath.Join(p.o.RunDir, "nerdctl", hex.EncodeToString(sum[:4]), "containers", p.o.Namespace, id)
}
