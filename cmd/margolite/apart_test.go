package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// raceDetected says that this program was built with the race detector.
func raceDetected() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A database that leads bbolt in a circle ends the process that reads it for want of
// memory, and neither the machine nor this process.
func TestADatabaseWithoutEndIsDamaged(t *testing.T) {
	if raceDetected() {
		t.Skip("the race detector takes more memory than there may be")
	}
	path := filepath.Join(t.TempDir(), "some.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: 4096})
	if err == nil {
		err = errors.Join(db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket([]byte("some"))
			for i := range 1000 {
				err = errors.Join(err, b.Put(fmt.Append(nil, 1000+i), make([]byte, 100)))
			}
			return err
		}), db.Close())
	}
	check(t, err)
	expect.Error(t, checkDatabase(t.Context())(path), nil, "a sound one")
	data := expect.Value(os.ReadFile(path))(t)
	for at := 2 * 4096; at < len(data); at += 4096 {
		if page := data[at:][:4096]; page[8] == 1 { // a branch
			for i := range int(binary.NativeEndian.Uint16(page[10:])) {
				copy(page[16+16*i+8:], page[:8]) // it is its own child
			}
		}
	}
	check(t, os.WriteFile(path, data, 0o600))
	expect.Error(t, checkDatabase(t.Context())(path), embedded.ErrDamaged, "checking it fails with")
	read := func(ctx context.Context) error {
		out, err := doApart(ctx)("read", path, "some")
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, out)
		return out.Close()
	}
	if err := read(t.Context()); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("reading it fails with %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	expect.Error(t, read(stopped), context.Canceled, "when the agent stops it fails with")
}

// Whether a process ended at its own bound or was refused memory by the system, Go says
// the same. Only the first is damage.
func TestASystemThatRefusesMemoryIsNoDamage(t *testing.T) {
	end := func() error {
		p := &apartProcess{
			cmd: exec.Command("sh", "-c", "echo 'fatal error: runtime: out of memory' >&2; exit 2"),
			job: "check some.db", ctx: t.Context(), limited: t.Context(), cancel: func() {},
		}
		p.cmd.Stderr = &p.said
		out, err := p.cmd.StdoutPipe()
		if err == nil {
			p.ReadCloser, err = out, p.cmd.Start()
		}
		check(t, err)
		return p.Close()
	}
	expect.Error(t, end(), store.ErrCorrupt, "where there is memory it fails with")
	status, err := os.ReadFile("/proc/self/status")
	check(t, err)
	var kib uint64
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmData: %d kB", &kib)
	}
	var before unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_DATA, &before))
	check(t, unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: kib<<10 + apartMemory/2, Max: before.Max}))
	err = end()
	check(t, unix.Setrlimit(unix.RLIMIT_DATA, &before))
	expect.True(t, err != nil && !errors.Is(err, store.ErrCorrupt), "where there is none it fails with %v", err)
}
