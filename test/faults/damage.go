package faults

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/faults/medium"
)

// Below the state directory.
const (
	storeFile = "margolite.db"
	metaFile  = "containerd/io.containerd.metadata.v1.bolt/meta.db"
	blobsDir  = "containerd/io.containerd.content.v1.content/blobs"
)

// damages are what a medium may make of what lies on it, by name.
var damages = map[string]func(*Rig){
	"store-damaged": func(r *Rig) { r.overwrite(storeFile) },
	"meta-damaged":  func(r *Rig) { r.overwrite(metaFile) },
	"meta-deleted":  func(r *Rig) { check(r.T, os.Remove(filepath.Join(r.StateDir(), metaFile))) },
	"blobs-torn":    (*Rig).tear,
}

// Damage makes changes while the power goes that many times, with damage of that name to what the medium holds. Without a
// network everything that the device says it runs has to run again, before the network is back for what comes out.
func (r *Rig) Damage(name string, n int) {
	r.T.Helper()
	for range n {
		if r.Rand.IntN(2) == 0 {
			r.Change()
		}
		if name == "store-damaged" {
			// A page takes with it the reports that it holds, if they are not delivered, and
			// the revision to go back to: what is desired has to be one that can run.
			for _, d := range r.deployments {
				if k := d.now().kind; k == stuck || k == absent {
					r.change(d, good)
				}
			}
			r.Converge()
		} else {
			r.pause(2 * longest)
		}
		check(r.T, errors.Join(r.WFM.Close(), r.Registry.Close()))
		r.cut(medium.Losses()[r.Rand.IntN(len(medium.Losses()))], damages[name])
		if err := r.eventually(r.worksAlone); err != nil {
			r.T.Fatalf("seed %d: without a network: %v", r.options.Seed, err)
		}
		check(r.T, errors.Join(r.WFM.Start(""), r.Registry.Start("")))
		r.Converge()
		_ = os.Remove(filepath.Join(r.StateDir(), metaFile+".bad")) // set aside for whoever wants to look at it
	}
}

// worksAlone says what does not run of what the device says it does.
func (r *Rig) worksAlone(ctx context.Context) error {
	s, err := r.Control().Status(ctx)
	if err != nil {
		return err
	}
	for _, d := range r.deployments {
		if err := d.works(s); err != nil {
			return err
		}
	}
	return nil
}

// overwrite puts what a page never holds over one of a database.
func (r *Rig) overwrite(name string) {
	r.T.Helper()
	f, err := os.OpenFile(filepath.Join(r.StateDir(), name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return // the power went before it was made
	}
	check(r.T, err)
	info := expect.Value(f.Stat())(r.T)
	junk := make([]byte, os.Getpagesize())
	for i := range junk {
		junk[i] = byte(r.Rand.Uint32())
	}
	page := r.Rand.Int64N(max(1, info.Size()/int64(len(junk))))
	r.T.Logf("page %d of %s is damaged", page, name)
	_, err = f.WriteAt(junk, page*int64(len(junk)))
	check(r.T, errors.Join(err, f.Sync(), f.Close()))
}

// tear cuts the end off some blobs of images.
func (r *Rig) tear() {
	r.T.Helper()
	check(r.T, filepath.WalkDir(filepath.Join(r.StateDir(), blobsDir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || r.Rand.IntN(2) == 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		r.T.Logf("blob %.12s is torn", e.Name())
		return os.Truncate(path, info.Size()/2)
	}))
}
