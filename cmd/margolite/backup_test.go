package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// backedDevice is a device with a configuration, an identity and records.
type backedDevice struct {
	t                   *testing.T
	config, dir, secret string
}

func newBackedDevice(t *testing.T, id string) backedDevice {
	t.Helper()
	config := configuration(t)
	dir := filepath.Dir(config)
	write(t, config, fmt.Sprintf("%[2]sstate: {dir: %[1]s/state, run: %[1]s}\nwfm: {certificate: %[1]s/device.pem, key: %[1]s/device.key}\n", dir, id))
	write(t, filepath.Join(dir, "device.pem"), "certificate of "+id)
	write(t, filepath.Join(dir, "device.key"), "key of "+id)
	return backedDevice{t, config, dir, write(t, filepath.Join(dir, "passphrase"), "correct horse battery staple\n")}
}

// accept has the device accept a manifest of one deployment, which a person has approved.
func (d backedDevice) accept(version uint64) {
	d.t.Helper()
	d.with(func(s *store.Store) {
		document := fmt.Appendf(nil, "version %d", version)
		sum := digest.FromBytes(document)
		err := s.Commit("test", store.Change{
			Manifest:  &store.Manifest{Version: version, ETag: "e", Digest: sum, Scope: "wfm"},
			Artifacts: map[digest.Digest][]byte{sum: document},
			Deployments: []store.Deployment{{
				ID: "app", Phase: "active", Desired: store.Revision{Digest: sum, Version: version},
				Former: &store.Revision{Version: version - 1}, Answers: []store.Answer{{Revision: sum, Verdict: "approved", By: "ada"}},
			}},
			Reports:  []store.Report{{Deployment: "app", Body: []byte("r")}},
			Journal:  []store.Entry{{Kind: "manifest.accepted", Version: version}},
			Settings: map[string][]byte{"client": []byte("client of " + d.dir), "locks": []byte("[]")},
		})
		check(d.t, err)
	})
}

func (d backedDevice) with(do func(s *store.Store)) {
	d.t.Helper()
	s := expect.Value(store.Open(filepath.Join(d.dir, "state", "margolite.db"), store.Options{Passing: passingSettings()}))(d.t)
	do(s)
	check(d.t, s.Close())
}

// holds says in one line what the device knows.
func (d backedDevice) holds() (line string) {
	d.t.Helper()
	d.with(func(s *store.Store) {
		m, _, err := s.Manifest()
		deployments, deploymentsErr := s.Deployments()
		client, _, clientErr := s.Setting("client")
		reports, reportsErr := s.CountReports()
		v, journalErr := s.VerifyJournal()
		check(d.t, errors.Join(err, deploymentsErr, clientErr, reportsErr, journalErr))
		line = fmt.Sprintf("version %d%s", m.Version, m.ETag)
		for _, a := range deployments {
			expect.OK(d.t, expect.ErrorOf(s.Artifact(a.Desired.Digest)))
			line += fmt.Sprintf(", %s %d, former %d, %s by %s", a.ID, a.Desired.Version, a.Former.Version, a.Answers[0].Verdict, a.Answers[0].By)
		}
		line += fmt.Sprintf(", %q, %d reports, %d entries", client, reports, v.Entries)
	})
	return line
}

func (d backedDevice) file(name string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	return string(text)
}

func (d backedDevice) call(args ...string) answer {
	d.t.Helper()
	return call(d.t, append(args, "--config", d.config)...)
}

func (d backedDevice) done(args ...string) {
	d.t.Helper()
	if got := d.call(args...); got.code != command.Done {
		d.t.Fatalf("%v: %s", args, got.err)
	}
}

// leavesNothing says that no file of a restore or backup lies about.
func (d backedDevice) leavesNothing() {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, _ fs.DirEntry, err error) error {
		if base := filepath.Base(path); strings.HasSuffix(base, ".new") || strings.HasSuffix(base, ".compact") || strings.Contains(base, "restore") {
			d.t.Errorf("%s is left behind", path)
		}
		return err
	})
	expect.OK(d.t, err)
}

func TestABackupIsRestoredOnAnotherDevice(t *testing.T) {
	old := newBackedDevice(t, "device: {id: gw-1}\n")
	old.accept(7)
	file := filepath.Join(old.dir, "b.tar")
	old.call("backup", file, "--identity", old.secret).ends(t, command.Done, "gw-1", "")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(old.file("b.tar"), "key of") {
		t.Errorf("the file is %v, %v, or has a key in plain", info, err)
	}

	plain := newBackedDevice(t, "device: {id: gw-2}\n")
	plain.call("restore", file).fails(t, "is of device gw-1", "--another-device")
	plain.leavesNothing()
	plain.done("restore", file, "--another-device")
	expect.Equal(t, plain.holds(), `version 7, app 7, former 6, approved by ada, "", 0 reports, 2 entries`, "without identity the device holds")
	if plain.file("device.key") != "key of device: {id: gw-2}\n" || plain.file("state/device-id") != "" {
		t.Error("the identity changed without being asked for")
	}
	plain.leavesNothing()

	same := newBackedDevice(t, "")
	for wrong, args := range map[string][]string{
		"cannot decrypt":    {"--identity", write(t, filepath.Join(same.dir, "wrong"), "some other passphrase")},
		"no such file":      {"--identity", "/nonexistent"},
		"the file of one":   {"another.tar"},
		"is of device gw-1": {"--another-device=false"},
	} {
		if got := same.call(append([]string{"restore", file, "--another-device"}, args...)...); got.code == command.Done || !strings.Contains(got.err, wrong) {
			t.Errorf("want %q, got %+v", wrong, got)
		}
		same.leavesNothing()
	}
	same.done("restore", file, "--another-device", "--identity", old.secret)
	want := fmt.Sprintf("version 7, app 7, former 6, approved by ada, %q, 1 reports, 2 entries", "client of "+old.dir)
	expect.Equal(t, same.holds(), want, "with identity the device holds")
	if same.file("device.key") != old.file("device.key") || same.file("device.pem") != old.file("device.pem") || same.file("state/device-id") != "gw-1\n" {
		t.Error("the identity is not that of the old device")
	}
	same.leavesNothing()
}

// A backup is made while the agent runs; a restore requires that it has stopped.
func TestABackupIsMadeWhileTheAgentRuns(t *testing.T) {
	d := newBackedDevice(t, "device: {id: gw-1}\n")
	d.accept(7)
	want := d.holds()
	a := &fakeAgent{}
	served := serve(t, a)
	d.with(func(s *store.Store) {
		a.records = s
		running := fmt.Sprintf("device: {id: gw-1}\nstate: {dir: %s/state, run: %s}\n", d.dir, filepath.Dir(served))
		write(t, served, running)
		call(t, "backup", filepath.Join(d.dir, "b.tar"), "--config", served).ends(t, command.Done, "gw-1", "device.key")
		call(t, "restore", filepath.Join(d.dir, "b.tar"), "--config", served).fails(t, "while the agent runs")
		d.call("restore", filepath.Join(d.dir, "b.tar")).fails(t, "in use by another process")
		call(t, "backup", "/dev/full", "--config", served).fails(t, "not a regular file")
	})
	d.done("restore", filepath.Join(d.dir, "b.tar"))
	expect.Equal(t, d.holds(), strings.NewReplacer("7e", "7", "1 entries", "2 entries").Replace(want), "the device holds")
	d.leavesNothing()
}

func TestAStaleBackupBringsNoOlderManifestBack(t *testing.T) {
	d := newBackedDevice(t, "device: {id: gw-1}\n")
	file := filepath.Join(d.dir, "b.tar")
	d.accept(7)
	d.done("backup", file)
	d.accept(9)
	want := d.holds()
	d.call("restore", file).fails(t, "version 7 of the manifest, and this device has accepted version 9")
	expect.Equal(t, d.holds(), want, "the device holds")
	check(t, os.Remove(filepath.Join(d.dir, "state", "margolite.db"))) // accepted.json still knows
	expect.Equal(t, d.call("restore", file).code, command.Failed, "a stale backup on a device without a database")
	d.leavesNothing()
}

// Power may go before a restore is decided, which changes nothing, and after it, when
// the next start goes on.
func TestARestoreIsWholeOrNotAtAll(t *testing.T) {
	old := newBackedDevice(t, "device: {id: gw-1}\n")
	old.accept(7)
	file := filepath.Join(old.dir, "b.tar")
	old.done("backup", file, "--identity", old.secret)
	for cut := range 9 {
		d := newBackedDevice(t, "device: {id: gw-2}\n")
		d.accept(3)
		before := d.holds()
		state := filepath.Join(d.dir, "state")
		cfg := expect.Value((&cli{configFile: d.config}).load(true))(t)
		d.with(func(own *store.Store) {
			r := &restoration{config: cfg, another: true, passphrase: old.secret, own: own}
			f := expect.Value(os.Open(file))(t)
			defer f.Close()
			check(t, r.stage(f))
		})
		start := func() { // of the agent
			t.Helper()
			records, err := openStore(t.Context(), cfg, 0)
			if err == nil {
				err = records.Close()
			}
			expect.Require(t, err == nil, "after %d moves: %v", cut-1, err)
		}
		if cut == 0 { // just before
			check(t, os.Rename(stagedDir(state), stagedDir(state)+".new"))
			start()
			if got := d.holds(); got != before || !strings.Contains(d.file("device.key"), "gw-2") {
				t.Errorf("before it is decided there is %s, want %s", got, before)
			}
			d.done("restore", file, "--another-device", "--identity", old.secret)
		}
		moves := [][2]string{
			{d.dir + "/device.key.restore", d.dir + "/device.key"},
			{d.dir + "/device.pem.restore", d.dir + "/device.pem"},
			{state + "/device-id.restore", state + "/device-id"},
		}
		for _, name := range []string{"settings.json", "journal.json", "accepted.json", "margolite.db"} {
			moves = append(moves, [2]string{stagedDir(state) + "/" + name, state + "/" + name})
		}
		for _, move := range moves[:max(0, cut-1)] {
			check(t, os.Rename(move[0], move[1]))
		}
		start()
		if got := d.holds(); !strings.HasPrefix(got, "version 7, app 7") || d.file("device.key") != old.file("device.key") || d.file("state/device-id") != "gw-1\n" {
			t.Errorf("after %d moves there is %s", cut-1, got)
		}
		d.leavesNothing()
	}
}

// An incomplete or forged backup changes nothing.
func TestNoOtherFileIsRestored(t *testing.T) {
	d := newBackedDevice(t, "device: {id: gw-1}\n")
	d.accept(7)
	file := filepath.Join(d.dir, "b.tar")
	d.done("backup", file, "--identity", d.secret)
	whole := []byte(d.file("b.tar"))
	bad := map[string][]byte{"empty": nil, "text": []byte("hello"), "zeros": make([]byte, 4096)}
	for _, at := range []int{1, 512, 600, len(whole) / 2, len(whole) - 2100} {
		bad[fmt.Sprintf("cut at %d", at)] = whole[:at]
	}
	for _, at := range []int{0, 520, 1540, len(whole) / 2} {
		flipped := bytes.Clone(whole)
		flipped[at] ^= 1
		bad[fmt.Sprintf("flipped at %d", at)] = flipped
	}
	entry := func(h tar.Header, content string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		check(t, w.WriteHeader(&h))
		_, _ = io.WriteString(w, content)
		_ = w.Flush() // the padding
		return append(b.Bytes(), whole...)
	}
	bad["a path"] = entry(tar.Header{Name: "../../etc/passwd", Size: 1}, "x")
	bad["a link"] = entry(tar.Header{Name: backupDatabase, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
	bad["a huge file"] = entry(tar.Header{Name: backupDatabase, Size: maxDatabase + 1}, "")
	bad["a file twice"] = entry(tar.Header{Name: backupAbout, Size: 2}, "{}")
	want := d.holds()
	for name, content := range bad {
		check(t, os.WriteFile(file, content, 0o600))
		if got := d.call("restore", file); got.code != command.Failed || !strings.Contains(got.err, errBackup.Error()) {
			t.Errorf("%s: %+v", name, got)
		}
		d.leavesNothing()
	}
	expect.Equal(t, d.holds(), want, "the device holds")
}
