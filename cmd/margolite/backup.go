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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/tree"
	"github.com/margolite/margolite/store"
)

// A backup is a tar archive of these files, in this order. The last one has the sums of the others
// in the format of sha256sum; a backup without it is truncated.
const (
	backupAbout    = "margolite-backup.json"
	backupDatabase = "margolite.db"
	backupIdentity = "identity.age" // JSON of contents by key, encrypted; only on request
	backupSums     = "SHA256SUMS"
)

const (
	backupFormat = 1
	// workFactor makes scrypt use 32 MiB, which a small device can spare; the default of age takes
	// 256 MiB. In return a passphrase must be longer.
	workFactor    = 15
	minPassphrase = 16
)

type aboutBackup struct {
	Format    int       `json:"format"`
	Margolite string    `json:"margolite"` // version of the program
	Made      time.Time `json:"made"`
	Device    string    `json:"device"`            // device id
	Machine   string    `json:"machine,omitempty"` // id derived from the machine; empty: none
}

// identityFiles are the files of the device's identity, by configuration key.
func identityFiles(cfg *config.Config) map[string]string {
	w := cfg.WFM
	files := map[string]string{
		"wfm.certificate": w.Certificate, "wfm.key": w.Key,
		"wfm.authorization.basic": w.Authorization.Basic, "wfm.authorization.bearer": w.Authorization.Bearer,
		"wfm.git.token": w.Git.Token, "wfm.git.certificate": w.Git.Certificate, "wfm.git.key": w.Git.Key,
	}
	maps.DeleteFunc(files, func(_, path string) bool { return path == "" })
	return files
}

const deviceIDKey = "device.id"

// onBackup is a command about one backup file; do gets the file, the configuration, and the
// description of this device in a backup.
func (c *cli) onBackup(f *command.Flags, do func(ctx context.Context, file string, cfg *config.Config, about aboutBackup) error) command.Action {
	f.Takes(1, 1, "the file of one backup")
	return func(ctx context.Context, args []string) error {
		cfg, err := c.load(false)
		if err != nil {
			return err
		}
		device, err := deviceOf(ctx, cfg)
		if err != nil && !errors.Is(err, errNoIdentity) {
			return err
		}
		facts, _ := discover(ctx, cfg, "/")() // unknown facts are empty
		about := aboutBackup{backupFormat, build.Version(), time.Now().UTC().Truncate(time.Second), device.ID, agent.DeviceID(facts.Identity)}
		return do(ctx, args[0], cfg, about)
	}
}

func (c *cli) backup(f *command.Flags) command.Action {
	passphrase := f.String("identity", "", "include certificates, private keys and the device id, encrypted with the passphrase in `FILE`")
	return c.onBackup(f, func(ctx context.Context, file string, cfg *config.Config, about aboutBackup) error {
		return c.writeBackup(ctx, file, cfg, about, *passphrase)
	})
}

func (c *cli) writeBackup(ctx context.Context, file string, cfg *config.Config, about aboutBackup, passphrase string) (err error) {
	var secret []byte
	if passphrase != "" {
		if secret, err = sealIdentity(cfg, about.Device, passphrase); err != nil {
			return fmt.Errorf("cannot back up the identity: %w", err)
		}
	}
	database, size, err := c.copyDatabase(ctx, cfg)
	if err != nil {
		return err
	}
	defer database.Close()
	if err := saveBackup(file, about, database, size, secret); err != nil {
		return fmt.Errorf("cannot write backup %s: %w", file, err)
	}
	fmt.Fprintf(c.out, "The backup of device %s is in %s.\n", about.Device, file)
	if secret == nil {
		fmt.Fprintf(c.err, "It has no identity. Repeat this with --identity, or carry these files to the new device by hand: %s\n",
			strings.Join(slices.Sorted(maps.Values(identityFiles(cfg))), ", "))
	}
	return nil
}

func (c *cli) copyDatabase(ctx context.Context, cfg *config.Config) (io.ReadCloser, int64, error) {
	database, size, err := control.Dial(socketPath(cfg)).Backup(ctx)
	if !errors.Is(err, control.ErrNotRunning) {
		return database, size, err
	}
	if _, err := os.Stat(databaseFile(cfg)); err != nil {
		return nil, 0, command.Hint(fmt.Errorf("there is nothing to back up: %w", err), "name the device's configuration with --config FILE")
	}
	records, err := openStore(ctx, cfg, limits.Bundle)
	if err != nil {
		return nil, 0, err
	}
	copied, err := records.Copy(cfg.State.Reserve)
	if err = errors.Join(err, records.Close()); err != nil {
		return nil, 0, err
	}
	info, err := copied.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, copied.Close())
	}
	return copied, info.Size(), nil
}

// saveBackup replaces path with a backup once it is durable.
func saveBackup(path string, about aboutBackup, database io.Reader, size int64, secret []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("it exists and is not a regular file")
	}
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.CloseWithError(writeBackup(w, about, database, size, secret))
	}()
	err := store.ReplaceFile(path, 0o600, r)
	r.CloseWithError(err)
	<-ended
	return err
}

func writeBackup(w io.Writer, about aboutBackup, database io.Reader, size int64, secret []byte) error {
	text, err := json.Marshal(about)
	archive, sums := tar.NewWriter(w), &strings.Builder{}
	add := func(name string, size int64, content io.Reader) {
		sum := sha256.New()
		if err == nil {
			err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: about.Made})
		}
		if err == nil {
			_, err = io.CopyN(io.MultiWriter(archive, sum), content, size)
		}
		fmt.Fprintf(sums, "%x  %s\n", sum.Sum(nil), name)
	}
	add(backupAbout, int64(len(text)), bytes.NewReader(text))
	add(backupDatabase, size, database)
	if secret != nil {
		add(backupIdentity, int64(len(secret)), bytes.NewReader(secret))
	}
	all := sums.String()
	add(backupSums, int64(len(all)), strings.NewReader(all))
	if err != nil {
		return err
	}
	return archive.Close()
}

func sealIdentity(cfg *config.Config, device, passphrase string) ([]byte, error) {
	text, err := identity.ReadSecret(passphrase)
	if err != nil {
		return nil, err
	}
	if len(text) < minPassphrase {
		return nil, fmt.Errorf("the passphrase in %s has less than %d characters", passphrase, minPassphrase)
	}
	to, err := age.NewScryptRecipient(text)
	if err != nil {
		return nil, err
	}
	to.SetWorkFactor(workFactor)
	all := map[string][]byte{}
	if device != "" {
		all[deviceIDKey] = []byte(device + "\n")
	}
	for key, path := range identityFiles(cfg) {
		all[key], err = tree.ReadFile(path, maxIdentity)
		if errors.Is(err, fs.ErrNotExist) {
			delete(all, key) // a default that this device does not use
		} else if err != nil {
			return nil, err
		}
	}
	plain, err := json.Marshal(all)
	if err == nil && len(plain) > maxIdentity/2 {
		err = fmt.Errorf("it has %d bytes; the limit is %d", len(plain), maxIdentity/2)
	}
	if err != nil {
		return nil, err
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err == nil {
		_, err = w.Write(plain)
		err = errors.Join(err, w.Close())
	}
	return sealed.Bytes(), err
}

func databaseFile(cfg *config.Config) string { return filepath.Join(cfg.State.Dir, backupDatabase) }
