package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

func TestID02CSRKeepsTheKeyOnTheDevice(t *testing.T) {
	const id = "spiffe://factory.example/margo/wfm/one/client/gw-07"
	dir := t.TempDir()
	key := filepath.Join(dir, "device.key")
	configuration := filepath.Join(dir, "config.yaml")
	check(t, os.WriteFile(configuration, []byte("wfm:\n  key: "+key+"\n"), 0o600))
	parse := func(t *testing.T, text string) *x509.CertificateRequest {
		t.Helper()
		block, _ := pem.Decode([]byte(text))
		expect.Require(t, block != nil, "no request: %q", text)
		return expect.Value(x509.ParseCertificateRequest(block.Bytes))(t)
	}

	t.Run("ID-02 the key is made where the configuration says", func(t *testing.T) {
		got := call(t, "csr", "--config", configuration, "--id", id)
		got.ends(t, command.Done, "REQUEST", "new private key in "+key)
		if request := parse(t, got.out); len(request.URIs) != 1 || request.URIs[0].String() != id {
			t.Errorf("the request is for %v", request.URIs)
		}
		expect.Equal(t, expect.Value(os.Stat(key))(t).Mode().Perm(), 0o600, "the key")
	})
	t.Run("a common name for the revisions before", func(t *testing.T) {
		before := expect.Value(os.ReadFile(key))(t)
		file := filepath.Join(dir, "request.pem")
		for range 2 {
			call(t, "csr", "--name", "gw-07", "--key", key, "-o", file).ends(t, command.Done, "", "the private key in "+key)
		}
		text := expect.Value(os.ReadFile(file))(t)
		if request := parse(t, string(text)); request.Subject.CommonName != "gw-07" || len(request.URIs) != 0 {
			t.Errorf("the request is for %s, %v", request.Subject, request.URIs)
		}
		expect.Equal(t, string(expect.Value(os.ReadFile(key))(t)), string(before), "the key is another")
	})
	t.Run("ID-25 the key is not overwritten", func(t *testing.T) {
		before := expect.Value(os.ReadFile(key))(t)
		call(t, "csr", "--name", "gw-07", "--key", key, "--out", key).ends(t, command.Usage, "", "--out names the file of the private key")
		expect.Equal(t, string(expect.Value(os.ReadFile(key))(t)), string(before), "the key")
		other := filepath.Join(dir, "other")
		check(t, os.WriteFile(other, []byte("something else\n"), 0o600))
		call(t, "csr", "--name", "gw-07", "--key", other).ends(t, command.Failed, "", "fix: name a new file with --key")
		expect.Equal(t, string(expect.Value(os.ReadFile(other))(t)), "something else\n", "the file")
	})
	t.Run("ID-25 a key that others can read is not used", func(t *testing.T) {
		check(t, os.Chmod(key, 0o644))
		call(t, "csr", "--id", id, "--key", key).fails(t, "chmod 600")
	})
	t.Run("a folder that is missing", func(t *testing.T) {
		call(t, "csr", "--id", id, "--key", filepath.Join(dir, "no", "device.key")).fails(t, "fix: create the directory")
	})
}
