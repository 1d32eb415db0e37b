// Package openpgp makes OpenPGP keys and signatures for tests, with the gpg
// program of GnuPG and a home of its own.
package openpgp

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// GPG has the keys that it made, none of which has a passphrase.
type GPG struct {
	t    testing.TB
	home string
}

// New starts without keys, and skips the test where there is no GnuPG. What it makes is gone with the test.
func New(t testing.TB) *GPG {
	t.Helper()
	for _, program := range []string{"gpg", "gpgv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	home := expect.Value(os.MkdirTemp("/tmp", "gpg"))(t) // short: sockets are in it
	g := &GPG{t, home}
	t.Cleanup(func() {
		// The agent that gpg starts would stay.
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "gpgconf", "--homedir", home, "--kill", "all")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("cannot end gpg-agent: %v: %s", err, out)
		}
		expect.OK(t, os.RemoveAll(home))
	})
	return g
}

// Run runs gpg and returns what it writes.
func (g *GPG) Run(stdin []byte, args ...string) []byte {
	g.t.Helper()
	var out, words bytes.Buffer
	args = append([]string{"--homedir", g.home, "--batch", "--yes", "--no-tty", "--passphrase", ""}, args...)
	cmd := exec.CommandContext(g.t.Context(), "gpg", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &words
	if err := cmd.Run(); err != nil {
		g.t.Fatalf("gpg %s: %v: %s", strings.Join(args, " "), err, words.Bytes())
	}
	return out.Bytes()
}

// Key makes a key that can sign, and returns its fingerprint. lifetime is as in
// "1y" or "never"; options come before the command.
func (g *GPG) Key(user, algorithm, lifetime string, options ...string) string {
	g.t.Helper()
	g.Run(nil, append(options, "--quick-generate-key", user, algorithm, "sign", lifetime)...)
	for line := range strings.Lines(string(g.Run(nil, "--with-colons", "--list-keys", "="+user))) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			return fields[9]
		}
	}
	g.t.Fatalf("gpg has no key of %s", user)
	return ""
}

// Revoke revokes a key.
func (g *GPG) Revoke(fingerprint string) {
	g.t.Helper()
	certificate := expect.Value(os.ReadFile(filepath.Join(g.home, "openpgp-revocs.d", fingerprint+".rev")))(g.t)
	// A colon keeps it from being imported by mistake.
	g.Run(bytes.Replace(certificate, []byte("\n:-----BEGIN"), []byte("\n-----BEGIN"), 1), "--import")
}

// Public returns public keys as packets, or with the option --armor as text.
func (g *GPG) Public(fingerprints []string, options ...string) []byte {
	g.t.Helper()
	return g.Run(nil, append(append(options, "--export"), fingerprints...)...)
}

// Sign returns a detached signature by one key as packets, or with the option
// --armor as text.
func (g *GPG) Sign(fingerprint string, data []byte, options ...string) []byte {
	g.t.Helper()
	return g.Run(data, append(options, "--local-user", fingerprint, "--detach-sign")...)
}
