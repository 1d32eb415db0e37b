package plant

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoMemoryLimit says that control groups cannot limit memory here.
var ErrNoMemoryLimit = errors.New("memory cannot be limited")

// MemoryGroup is a control group with a memory limit, of version 1 or 2.
type MemoryGroup struct {
	dir     string
	version int
}

// NewMemoryGroup makes a group whose name begins with name, and whose processes may
// have limit bytes together, without swap.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	const root = "/sys/fs/cgroup"
	g := &MemoryGroup{version: 1, dir: filepath.Join(root, "memory")}
	limits := map[string]int64{"memory.limit_in_bytes": limit, "memory.swappiness": 0}
	if _, err := os.Stat(g.dir); err != nil {
		g.version, g.dir = 2, root
		limits = map[string]int64{"memory.max": limit, "memory.swap.max": 0}
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoMemoryLimit, err)
		}
	}
	g.dir = filepath.Join(g.dir, name+"-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make memory group: %w", err)
	}
	for file, value := range limits {
		err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(value, 10)), 0)
		if err != nil && value > 0 { // swap may not be accounted for
			return nil, errors.Join(fmt.Errorf("cannot limit memory: %w", err), os.Remove(g.dir))
		}
	}
	return g, nil
}

// Close removes the group once its processes have ended.
func (g *MemoryGroup) Close(ctx context.Context) error {
	return Eventually(ctx, func() error {
		if err := os.Remove(g.dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// Wrap writes a script that starts a program inside the group.
func (g *MemoryGroup) Wrap(program, script string) error {
	return os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\necho $$ >%s/cgroup.procs\nexec %s \"$@\"\n", g.dir, program), 0o755)
}

// Processes are the ids of the processes in the group.
func (g *MemoryGroup) Processes() ([]int, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	var pids []int
	for line := range strings.FieldsSeq(string(text)) {
		pid, _ := strconv.Atoi(line) // the kernel writes nothing else
		pids = append(pids, pid)
	}
	return pids, err
}

// Killed is how many processes of the group the kernel has killed for want of
// memory.
func (g *MemoryGroup) Killed() (int, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, map[int]string{1: "memory.oom_control", 2: "memory.events"}[g.version]))
	if err != nil {
		return 0, err
	}
	_, count, ok := strings.Cut(string(text), "oom_kill ")
	if !ok {
		return 0, fmt.Errorf("the kernel does not say whom it killed: %q", text)
	}
	return strconv.Atoi(strings.Fields(count)[0])
}
