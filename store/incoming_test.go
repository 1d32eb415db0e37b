package store_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// receive adds to an incoming artifact.
func (f *fixture) receive(d digest.Digest, data string) error {
	f.t.Helper()
	w := expect.Value(f.Incoming().Append(d))(f.t)
	_, err := io.WriteString(w, data)
	return errors.Join(err, w.Close())
}

// received reads what there is of one; "" where there is nothing.
func (f *fixture) received(d digest.Digest) string {
	f.t.Helper()
	r, err := f.Incoming().Open(d)
	if errors.Is(err, store.ErrNotFound) {
		return ""
	}
	check(f.t, err)
	defer r.Close()
	data := expect.Value(io.ReadAll(r))(f.t)
	if n, err := f.Incoming().Size(d); err != nil || n != int64(len(data)) {
		f.t.Errorf("Size = %d, %v, want %d", n, err, len(data))
	}
	return string(data)
}

func TestIncomingSurvivesARestart(t *testing.T) {
	f := newFixture(t)
	d := digest.FromString("one")
	same(t, "what never came", f.received(d), "")
	for i, more := range []string{"ab", "cd", ""} {
		check(t, f.receive(d, more))
		same(t, "what has come", f.received(d), "abcd"[:min(2*i+2, 4)])
		f.close()
		f.open()
	}
	same(t, "the database was written", f.Writes(), int64(0))
	if err := f.Incoming().Remove(d); err != nil || f.received(d) != "" {
		t.Errorf("after removal there is %q, %v", f.received(d), err)
	}
	expect.Error(t, f.Incoming().Remove(d), nil, "removal of nothing")
}

func TestIncomingTakesDigestsOnly(t *testing.T) {
	f := newFixture(t)
	for _, d := range []digest.Digest{"", "x", "sha256:", "sha256:../../etc/passwd", "../x:" + digest.Digest(digest.FromString("").Encoded())} {
		_, sizeErr := f.Incoming().Size(d)
		_, openErr := f.Incoming().Open(d)
		_, appendErr := f.Incoming().Append(d)
		expect.True(t, sizeErr != nil && openErr != nil && appendErr != nil && f.Incoming().Remove(d) != nil, "%q is taken", d)
	}
}

// A link in the folder does not lead out of it.
func TestIncomingFollowsNoLink(t *testing.T) {
	f := newFixture(t)
	d := digest.FromString("one")
	check(t, f.receive(d, "x"))
	other := filepath.Join(filepath.Dir(f.path), "other")
	path := filepath.Join(filepath.Dir(f.path), "incoming", "sha256-"+d.Encoded())
	check(t, errors.Join(os.WriteFile(other, []byte("y"), 0o600), os.Remove(path), os.Symlink(other, path)))
	expect.Error(t, expect.ErrorOf(f.Incoming().Open(d)), syscall.ELOOP, "reading it")
	expect.Error(t, expect.ErrorOf(f.Incoming().Append(d)), syscall.ELOOP, "adding to it")
}

func TestIncomingIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "margolite.db")
	s := expect.Value(store.Open(path, store.Options{IncomingBytes: 100}))(t)
	f := &fixture{t: t, Store: s, path: path}
	defer f.close()
	one, other := digest.FromString("one"), digest.FromString("other")
	check(t, errors.Join(f.receive(one, "0123456789"), f.receive(other, strings.Repeat("x", 40))))
	if f.received(one) != "" || len(f.received(other)) != 40 {
		t.Errorf("there is %q beside another one", f.received(one))
	}
	expect.Error(t, f.receive(other, strings.Repeat("x", 61)), store.ErrNoRoom, "more than it may have")
	expect.Error(t, f.receive(other, strings.Repeat("x", 60)), nil, "as much as it may have")
}

func TestIncomingKeepsWhatIsWanted(t *testing.T) {
	f := newFixture(t)
	expect.Error(t, f.Incoming().Keep(), nil, "before there is a folder")
	d := digest.FromString("d")
	check(t, f.receive(d, "d"))
	stray := filepath.Join(filepath.Dir(f.path), "incoming", "stray")
	check(t, os.MkdirAll(filepath.Join(stray, "x"), 0o700))
	check(t, f.Incoming().Keep(d))
	if _, err := os.Stat(stray); err == nil || f.received(d) != "d" {
		t.Errorf("there is %q, and the stray folder: %v", f.received(d), err)
	}
	if err := f.Incoming().Keep(); err != nil || f.received(d) != "" {
		t.Errorf("of what nobody wants there is %q, %v", f.received(d), err)
	}
}
