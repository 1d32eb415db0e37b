package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"filippo.io/age"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

const (
	maxAbout    = 64 << 10
	maxIdentity = 1 << 20
	maxDatabase = 512 << 20 // the store's own bound
	// stagedSuffix marks files that a restore is about to put in place.
	stagedSuffix = ".restore"
	stagedPlaces = "places.json" // in the restore's directory: paths of such files
)

// stagedDir is the directory of a decided restore, below state.dir. One rename creates it, and its
// existence commits the device to its content: a power cut before changes nothing, and after it the
// next start continues.
func stagedDir(state string) string { return filepath.Join(state, "restore") }

func (c *cli) restore(f *command.Flags) command.Action {
	b := &restoration{}
	f.BoolVar(&b.another, "another-device", false, "restore the backup of another device here, which is not used any more")
	f.StringVar(&b.passphrase, "identity", "", "also restore certificates, private keys and the device id, decrypted with the passphrase in `FILE`")
	return c.onBackup(f, func(ctx context.Context, path string, cfg *config.Config, here aboutBackup) error {
		b.config, b.here = cfg, here
		return c.restoreBackup(ctx, path, b)
	})
}

func (c *cli) restoreBackup(ctx context.Context, path string, b *restoration) error {
	cfg := b.config
	if err := control.Dial(socketPath(cfg)).Ping(ctx); !errors.Is(err, control.ErrNotRunning) {
		return command.Hint(errors.Join(errors.New("cannot restore while the agent runs"), err), "stop it with `systemctl stop margolite`; workloads keep running")
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	own, err := openStore(ctx, cfg, limits.Bundle) // its lock keeps out every agent
	if err != nil {
		return err
	}
	b.own, b.apart = own, doApart(ctx)
	if err := b.stage(file); err != nil {
		b.drop()
		return errors.Join(fmt.Errorf("cannot restore %s: %w", path, err), own.Close())
	}
	if err := errors.Join(finishRestore(cfg.State.Dir), own.Close()); err != nil {
		return err
	}
	fmt.Fprintf(plainWriter{c.out}, "This device is as %s was at %s. Start the agent.\n", b.about.Device, b.about.Made.Format(time.RFC3339))
	return nil
}

// restoration is one restore until it is decided.
type restoration struct {
	config     *config.Config
	here       aboutBackup // this device
	another    bool        // the backup may be from another device
	passphrase string      // file; empty: this device keeps its identity
	own        *store.Store
	apart      store.Apart // reads the received database, which may be damaged

	about  aboutBackup // the device in the backup
	sealed []byte      // its identity
	staged []string    // files whose new content is beside them
}

func (r *restoration) next() string { return stagedDir(r.config.State.Dir) + ".new" }

func (r *restoration) drop() {
	_ = os.RemoveAll(r.next())
	for _, path := range r.staged {
		_ = os.Remove(path + stagedSuffix)
	}
}

// stage checks a backup and puts its content beside what it will replace.
func (r *restoration) stage(from io.Reader) error {
	r.drop() // left by a power cut
	if err := os.Mkdir(r.next(), 0o700); err != nil {
		return err
	}
	if err := r.unpack(tar.NewReader(from)); err != nil {
		return err
	}
	foreign := r.about.Device != r.here.Device || r.about.Machine != r.here.Machine
	if foreign && !r.another {
		return command.Hint(
			fmt.Errorf("it is of device %s, and this is %s", r.about.Device, r.here.Device),
			"repeat this with --another-device, if that device is not used any more",
		)
	}
	restored, err := store.Open(filepath.Join(r.next(), backupDatabase), store.Options{Passing: passingSettings(), Apart: r.apart})
	if err != nil {
		return err
	}
	if err := errors.Join(r.merge(restored, foreign && r.passphrase == ""), restored.Close()); err != nil {
		return err
	}
	if err := r.stageIdentity(); err != nil {
		return err
	}
	places, err := json.Marshal(r.staged)
	if err == nil {
		err = store.ReplaceFile(filepath.Join(r.next(), stagedPlaces), 0o600, bytes.NewReader(places))
	}
	if err == nil {
		err = os.Rename(r.next(), stagedDir(r.config.State.Dir))
	}
	if err != nil {
		return err
	}
	r.staged = nil // decided: nothing may be dropped from here on
	return store.Sync(r.config.State.Dir)
}

var errBackup = errors.New("it is damaged, cut off, or not a backup of margolite")

// unpack reads an untrusted archive: names, kinds and sizes must be those of a backup.
func (r *restoration) unpack(archive *tar.Reader) error {
	most := map[string]int64{backupAbout: maxAbout, backupDatabase: maxDatabase, backupIdentity: maxIdentity, backupSums: maxAbout}
	sums := ""
	for {
		h, err := archive.Next()
		if err != nil || h.Typeflag != tar.TypeReg {
			return errBackup
		}
		if limit, known := most[h.Name]; !known || h.Size > limit {
			return errBackup
		}
		delete(most, h.Name) // each occurs once
		sum := sha256.New()
		content := io.TeeReader(archive, sum)
		var text []byte
		if h.Name == backupDatabase {
			err = store.ReplaceFile(filepath.Join(r.next(), backupDatabase), 0o600, content)
		} else {
			text, err = io.ReadAll(content)
		}
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, tar.ErrHeader):
			return errBackup
		case err != nil:
			return err
		}
		switch h.Name {
		case backupAbout:
			err = json.Unmarshal(text, &r.about)
		case backupIdentity:
			r.sealed = text
		case backupSums:
			if _, missing := most[backupDatabase]; missing || string(text) != sums || r.about.Format < 1 {
				return errBackup
			}
			if r.about.Format > backupFormat {
				return fmt.Errorf("it was made by version %s of margolite, in a format unknown to this version", r.about.Margolite)
			}
			return nil
		}
		if err != nil {
			return errBackup
		}
		sums += fmt.Sprintf("%x  %s\n", sum.Sum(nil), h.Name)
	}
}

// merge keeps from this device what must not go back. stranger: this device keeps its identity, and
// the backup is from another one.
func (r *restoration) merge(restored *store.Store, stranger bool) error {
	m, has, err := restored.Manifest()
	if err != nil {
		return err
	}
	held, known, err := r.own.Manifest()
	if err != nil && !known {
		return err
	}
	switch {
	case !known:
	case has && m.Scope != held.Scope && r.passphrase != "": // this device is another client from now on
	case has && m.Scope != held.Scope:
		m = held
	case m.Epoch < held.Epoch || m.Epoch == held.Epoch && m.Version < held.Version:
		return command.Hint(
			fmt.Errorf("it has version %d of the manifest, and this device has accepted version %d", m.Version, held.Version),
			"use a newer backup; a backup cannot bring an older manifest back",
		)
	}
	m.ETag = "" // the WFM is asked for everything
	settings := map[string][]byte{}
	take := func(names []string, always bool) {
		for _, name := range names {
			if value, set, err := r.own.Setting(name); always || err == nil && set {
				settings[name] = value
			}
		}
	}
	take(agent.PassingSettings(), true)
	take(uplink.LastingSettings(), false)
	if stranger {
		take(uplink.ClientSettings(), true)
		var told []uint64
		reports, err := restored.Reports(0, math.MaxInt)
		for _, report := range reports {
			told = append(told, report.Sequence)
		}
		if err = errors.Join(err, restored.AckReports(told...)); err != nil {
			return err
		}
	}
	note := store.Entry{Kind: "device.restored", Time: time.Now(), Text: fmt.Sprintf("this is the backup of device %s of %s", r.about.Device, r.about.Made.Format(time.RFC3339))}
	change := store.Change{Settings: settings, Journal: []store.Entry{note}}
	if known || has {
		change.Manifest = &m
	}
	return restored.Commit("restore", change)
}

func (r *restoration) stageIdentity() error {
	if r.passphrase == "" {
		return nil
	}
	if r.sealed == nil {
		return errors.New("it has no identity; carry its files by hand, and repeat this without --identity")
	}
	text, err := identity.ReadSecret(r.passphrase)
	if err != nil {
		return err
	}
	by, err := age.NewScryptIdentity(text)
	if err != nil {
		return err
	}
	by.SetMaxWorkFactor(workFactor) // ours never need more, and it takes memory
	plain, err := age.Decrypt(bytes.NewReader(r.sealed), by)
	if err != nil {
		return fmt.Errorf("cannot decrypt the identity: %w", err)
	}
	contents := map[string][]byte{}
	if err := json.NewDecoder(io.LimitReader(plain, maxIdentity)).Decode(&contents); err != nil {
		return fmt.Errorf("cannot read the identity: %w", err)
	}
	places := identityFiles(r.config)
	places[deviceIDKey] = madeDeviceID("/", r.config)
	for key, content := range contents {
		path, known := places[key]
		if !known {
			return fmt.Errorf("the identity has %.80q, and the configuration of this device does not say where that goes", key)
		}
		r.staged = append(r.staged, path)
		if err := store.ReplaceFile(path+stagedSuffix, 0o600, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return nil
}

// finishRestore moves a decided restore into place by repeatable renames, the database last.
func finishRestore(state string) error {
	staged := stagedDir(state)
	dir, err := os.Open(staged)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("cannot finish a restore: %w", store.ErrLocked)
	}
	var places []string
	text, err := os.ReadFile(filepath.Join(staged, stagedPlaces))
	if err == nil {
		err = json.Unmarshal(text, &places)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process finished it
	}
	for _, path := range places {
		if err == nil {
			err = move(path+stagedSuffix, path)
		}
	}
	for _, name := range []string{"settings.json", "journal.json", "accepted.json", backupDatabase} {
		if err == nil {
			err = move(filepath.Join(staged, name), filepath.Join(state, name))
		}
	}
	if err == nil {
		err = os.Rename(staged, staged+".new") // the rest no longer counts as a restore
	}
	if err != nil {
		return fmt.Errorf("cannot finish a restore: %w", err)
	}
	return errors.Join(os.RemoveAll(staged+".new"), store.Sync(state))
}

// move renames a file unless it already was.
func move(from, to string) error {
	if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return store.Sync(filepath.Dir(to))
}
