package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

// onSmallDisks runs a test with a store on file systems of 16 MiB. fill takes
// every block that is left, and gives back what makes room again.
func onSmallDisks(t *testing.T, test func(t *testing.T, f *fixture, fill func() (free func()))) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir := isolated.Disk(t, kind, 16<<20)
			f := &fixture{t: t, path: filepath.Join(dir, "state", "margolite.db")}
			f.open()
			t.Cleanup(func() {
				_ = f.Close()
				checkConsistency(t, f.path)
			})
			test(t, f, func() func() { return isolated.Fill(t, dir) })
		})
	}
}

// What a device does goes on being written while workloads leave no block free:
// phases and reports, over and over, also by the next process.
func TestRecordsAreWrittenOnAFullDisk(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, fill func() func()) {
		fill()
		for n := range 300 {
			if n == 150 {
				f.reopen()
			}
			if err := f.Commit("phase", store.Change{
				Deployments: []store.Deployment{deployment("a", fmt.Sprint(n))},
				Reports:     []store.Report{report("a", fmt.Sprint(n), 1, store.Step)},
			}); err != nil {
				t.Fatalf("commit %d: %v", n, err)
			}
			if n%10 == 9 {
				for _, r := range f.reports(100) {
					check(t, f.AckReports(r.Sequence))
				}
			}
		}
		manifest := store.Manifest{Version: 2, Digest: digest.FromString("2"), Scope: "w", ETag: `"2"`}
		document := []byte("kind: deployment\n")
		f.commit(store.Change{Manifest: &manifest, Artifacts: map[digest.Digest][]byte{digest.FromBytes(document): document}})
		f.reopen()
		same(t, "the accepted manifest", f.manifest(), manifest)
	})
}

// What does not fit is refused as a whole; the store goes on with what does, and
// takes all of it once there is space.
func TestWhatDoesNotFitIsRefusedAsAWhole(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, fill func() func()) {
		first := store.Manifest{Version: 1, Digest: digest.FromString("1"), Scope: "w"}
		f.commit(store.Change{Manifest: &first})
		free := fill()
		big := bytes.Repeat([]byte("package "), 3<<17)
		change := store.Change{
			Manifest:    &store.Manifest{Version: 2, Digest: digest.FromString("2"), Scope: "w"},
			Artifacts:   map[digest.Digest][]byte{digest.FromBytes(big): big},
			Deployments: []store.Deployment{deployment("a", "fetched")},
			Reports:     []store.Report{report("a", "pending", 1, store.Step)},
		}
		refused := func() {
			t.Helper()
			expect.Error(t, f.Commit("big", change), store.ErrFull, "error")
			got, _, err := f.Manifest()
			if all, listErr := f.Deployments(); err != nil || listErr != nil || len(all) != 0 || got != first ||
				f.HasArtifact(digest.FromBytes(big)) || len(f.reports(10)) != 0 {
				t.Errorf("half of it is there: %+v, %v, %v", all, got, errors.Join(err, listErr))
			}
		}
		refused()
		f.commit(store.Change{Settings: map[string][]byte{"a": []byte("b")}})
		f.reopen()
		refused()
		free()
		f.commit(change)
		f.reopen()
		expect.Equal(t, bytes.Equal(expect.Value(f.Artifact(digest.FromBytes(big)))(t), big), true, "the artifact is whole")
		same(t, "version", f.manifest().Version, uint64(2))
	})
}

// A flood of documents from outside leaves the room to records.
func TestDocumentsLeaveRoomForRecords(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, fill func() func()) {
		fill()
		taken := 0
		for ; taken < 1000; taken++ {
			document := bytes.Repeat([]byte{byte(taken), byte(taken >> 8)}, 4<<10)
			err := f.Commit("document", store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(document): document}})
			if errors.Is(err, store.ErrFull) {
				break
			}
			check(t, err)
		}
		expect.True(t, taken != 0 && taken != 1000, "%d documents were taken", taken)
		for n := range 50 {
			f.commit(store.Change{Deployments: []store.Deployment{deployment("a", fmt.Sprint(n))}})
		}
		expect.OK(t, expect.ErrorOf(f.PruneArtifacts(nil)))
	})
}

// The file beside the database catches up by itself.
func TestTheAcceptedManifestIsKeptBesideOnceThereIsSpace(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, fill func() func()) {
		free := fill()
		f.commit(store.Change{Manifest: &store.Manifest{Version: 7, Digest: digest.FromString("7"), Scope: "w"}})
		kept := func() bool {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(f.path), "accepted.json"))
			return err == nil && strings.Contains(string(data), digest.FromString("7").String())
		}
		if kept() {
			t.Skip("needs a file system without a free block")
		}
		free()
		f.commit(store.Change{Settings: map[string][]byte{"a": []byte("b")}})
		expect.Equal(t, kept(), true, "it is there")
	})
}

// The room is taken once: neither another start nor commits write more for it.
func TestTheRoomIsTakenOnce(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, _ func() func()) {
		blocks := func() int64 {
			var stat unix.Stat_t
			check(t, unix.Stat(f.path, &stat))
			return stat.Blocks * 512
		}
		before := blocks()
		expect.True(t, before >= 1<<20 && before <= 2<<20, "an empty database takes %d bytes", before)
		for n := range 50 {
			f.commit(store.Change{Settings: map[string][]byte{"a": []byte(fmt.Sprint(n))}})
			f.reopen()
		}
		same(t, "bytes that it takes", blocks(), before)
	})
}

func TestIncomingArtifactsLeaveTheReserve(t *testing.T) {
	s := expect.Value(store.Open(filepath.Join(isolated.Disk(t, "tmpfs", 16<<20), "margolite.db"), store.Options{Reserve: 8 << 20}))(t)
	defer s.Close()
	w := expect.Value(s.Incoming().Append(digest.FromString("bundle")))(t)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(zeros{}, 12<<20), make([]byte, 64<<10))
	expect.True(t, errors.Is(err, store.ErrNoRoom) && n >= 5<<20 && n <= 8<<20, "%d bytes came in, %v", n, err)
	expect.OK(t, w.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func deployment(id, phase string) store.Deployment {
	return store.Deployment{ID: id, Phase: phase, Desired: store.Revision{Digest: digest.FromString(id)}, Since: time.Unix(1, 0)}
}
