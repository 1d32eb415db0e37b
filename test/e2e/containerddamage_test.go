package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// rotten damages every page of a database behind its two meta pages.
func rotten(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	size := os.Getpagesize()
	for at := 2 * size; at < len(data); at += size {
		data[at+8] ^= 0x40
	}
	return os.WriteFile(path, data, 0o600)
}

// loseLastSnapshot takes away what a snapshotter knows of the newest snapshot that is
// of an image, as if its last transactions were lost. Those without a parent may be of
// nobody.
func loseLastSnapshot(path string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		all := tx.Bucket([]byte("v1")).Bucket([]byte("snapshots"))
		var last []byte
		var newest uint64
		if err := all.ForEachBucket(func(key []byte) error {
			b := all.Bucket(key)
			if id, _ := binary.Uvarint(b.Get([]byte("id"))); id > newest && b.Get([]byte("parent")) != nil {
				newest, last = id, bytes.Clone(key)
			}
			return nil
		}); err != nil {
			return err
		}
		return all.DeleteBucket(last)
	})
	return errors.Join(err, db.Close())
}

// Whatever a medium makes of the databases of the embedded containerd, the same
// services run again, each once, on their data; also without a WFM and without a
// registry, both of which hear nothing of it.
func TestADamagedContainerdConverges(t *testing.T) {
	long(t, "every damage")
	const metadata, snapshots = "io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	for _, damage := range []struct {
		name, file string
		do         func(path string) error
		bad        bool // the database is set aside
	}{
		{name: "its pages rot", file: metadata, bad: true, do: rotten},
		{name: "it is cut off", file: metadata, bad: true, do: func(path string) error { return os.Truncate(path, int64(3*os.Getpagesize()+100)) }},
		{name: "it is empty", file: metadata, do: func(path string) error { return os.Truncate(path, 0) }},
		{name: "it is gone", file: metadata, do: os.Remove},
		{name: "its directory is gone", file: metadata, do: func(path string) error { return os.RemoveAll(filepath.Dir(path)) }},
		{name: "the pages of the snapshots rot", file: snapshots, bad: true, do: rotten},
		{name: "the last snapshot is lost", file: snapshots, do: loseLastSnapshot},
		{name: "the snapshots are gone", file: snapshots, do: os.Remove},
	} {
		t.Run(damage.name, func(t *testing.T) {
			r.t = t
			visits, heard := r.answers(8090).Visit, len(r.WFM.Statuses(""))
			r.Kill()
			expect.Check(t, r.WFM.Close())
			address := r.Registry.Address()
			expect.Check(t, r.Registry.Close())
			file := filepath.Join(r.StateDir(), "containerd", damage.file)
			expect.Check(t, damage.do(file))
			log := r.logLength()
			r.running()
			r.runsOnce("Hello")
			plant.Require(r.t, "it counts on", func() error {
				if a := r.answers(8090); a.Visit <= visits {
					return fmt.Errorf("it says %+v: its data are not those of visit %d", a, visits)
				}
				return nil
			})
			if lines := r.logged(log, "security=true", "database"); len(lines) != 1 {
				t.Errorf("it is logged %d times: %q", len(lines), lines)
			}
			if _, err := os.Stat(file + ".bad"); damage.bad != (err == nil) {
				t.Errorf("what was damaged is kept: %v", err)
			}
			_ = os.Remove(file + ".bad")
			after := r.services(demoID)
			r.Kill()
			log = r.logLength()
			r.running()
			r.settled(demoID)
			r.untouched(demoID, after)
			if lines := r.logged(log, "security=true", "database"); len(lines) > 0 {
				t.Errorf("the next start logs %q", lines)
			}
			expect.Check(t, r.Registry.Start(address))
			expect.Check(t, r.WFM.Start(""))
			r.synced()
			r.quiet()
			if now := r.WFM.Statuses(""); len(now) != heard {
				t.Errorf("the WFM heard %+v", now[heard:])
			}
		})
	}
	r.t = t
	// Images are known again, for changes and for what nobody wants any more.
	update := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	r.await(demoID, margo.Installed, update.Version)
	r.runsOnce("Servus")
}
