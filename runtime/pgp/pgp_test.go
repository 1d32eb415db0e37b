package pgp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/pgp"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/openpgp"
)

const (
	inThePast   = "20200601T000000"
	inTheFuture = "20360601T000000"
)

var content = []byte("the bytes of a package\r\n")

// verify does what a device does with what it downloaded.
func verify(ctx context.Context, keys, signature, data []byte) (string, error) {
	k, err := pgp.ParseKeys(keys)
	if err != nil {
		return "", err
	}
	s, err := pgp.ParseSignature(signature)
	if err != nil {
		return "", err
	}
	return k.Verify(ctx, s, data)
}

// at makes gpg believe that it is another time, in which no second passes between two calls.
func at(when string) []string { return []string{"--faked-system-time", when + "!"} }

func TestPKG15GoodSignatures(t *testing.T) {
	g := openpgp.New(t)
	ed25519 := g.Key("ed25519", "ed25519", "never")
	rsa := g.Key("rsa", "rsa2048", "1y")
	ecdsa := g.Key("ecdsa", "nistp256", "never")
	subkey := g.Key("subkey", "ed25519", "never")
	g.Run(nil, "--quick-add-key", subkey, "ed25519", "sign", "never")
	future := g.Key("future", "ed25519", "never", at(inTheFuture)...)
	all := []string{rsa, ecdsa, subkey, ed25519}
	both := slices.Concat(g.Sign(rsa, content), g.Sign(ed25519, content))
	var many [][]byte
	for n := range 40 {
		many = append(many, g.Public([]string{g.Key(fmt.Sprintf("user %d", n), "ed25519", "never")}))
	}
	crowd := slices.Concat(bytes.Join(many, nil), g.Public([]string{ecdsa}))
	armor := string(g.Public([]string{ed25519}, "--armor", "--comment", "two: lines", "--comment", "of it"))
	body := strings.Split(strings.TrimSpace(armor), "\n")
	for name, c := range map[string]struct {
		keys, signature []byte
		signer          string
	}{
		"by Ed25519":                      {g.Public(all[3:]), g.Sign(ed25519, content), ed25519},
		"by RSA":                          {g.Public(all[:1]), g.Sign(rsa, content, "--digest-algo", "SHA512"), rsa},
		"by ECDSA":                        {g.Public(all[1:2]), g.Sign(ecdsa, content), ecdsa},
		"by a subkey":                     {g.Public(all[2:3]), g.Sign(subkey, content), subkey},
		"by one of several keys":          {g.Public(all), g.Sign(ed25519, content), ed25519},
		"by one of many keys":             {crowd, g.Sign(ecdsa, content), ecdsa},
		"by two, both known":              {g.Public(all), both, rsa},
		"by two, the first unknown":       {g.Public(all[3:]), both, ed25519},
		"by two, the second unknown":      {g.Public(all[:1]), both, rsa},
		"in armor":                        {g.Public(all[3:]), g.Sign(ed25519, content, "--armor"), ed25519},
		"by a key in armor":               {[]byte(armor), g.Sign(ed25519, content, "--armor"), ed25519},
		"by a key with text around it":    {[]byte("pub: ed25519\n\n" + armor + "\nbye\n"), g.Sign(ed25519, content), ed25519},
		"by a key with the ends of lines": {[]byte(strings.ReplaceAll(armor, "\n", "\r\n")), g.Sign(ed25519, content), ed25519},
		"by a key without a checksum":     {[]byte(strings.Join(slices.Delete(body, len(body)-2, len(body)-1), "\n")), g.Sign(ed25519, content), ed25519},
		"by a key in the second block": {
			slices.Concat(g.Public(all[:1], "--armor"), []byte("\n"), []byte(armor)), g.Sign(ed25519, content), ed25519,
		},
		"by a key that the clock does not know yet": {g.Public([]string{future}), g.Sign(future, content, at(inTheFuture)...), future},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, expect.Value(verify(t.Context(), c.keys, c.signature, content))(t), c.signer, "signer")
			signer, err := verify(t.Context(), c.keys, c.signature, append(bytes.Clone(content), '\n'))
			expect.True(t, fault.CodeOf(err) == fault.InvalidPackage && signer == "", "other data: by %q, %v", signer, err)
		})
	}
}

func TestPKG15SignaturesThatDoNotCount(t *testing.T) {
	g := openpgp.New(t)
	good := g.Key("good", "ed25519", "never")
	other := g.Key("other", "ed25519", "never")
	old := g.Key("old", "ed25519", "1y", at(inThePast)...)
	oldKey := g.Key("old, but good", "ed25519", "never", at(inThePast)...)
	revoked := g.Key("revoked", "ed25519", "never")
	byRevoked := g.Sign(revoked, content)
	g.Revoke(revoked)
	oldSubkey := g.Key("old subkey", "ed25519", "never", at(inThePast)...)
	g.Run(nil, append(at(inThePast), "--quick-add-key", oldSubkey, "ed25519", "sign", "1y")...)
	strangerSubkey := g.Key("another subkey", "ed25519", "never")
	withoutSubkey := g.Public([]string{strangerSubkey})
	g.Run(nil, "--quick-add-key", strangerSubkey, "ed25519", "sign", "never")

	key := g.Public([]string{good})
	signature := g.Sign(good, content)
	damaged := bytes.Clone(signature)
	damaged[len(damaged)-5] ^= 1
	_, certification, _ := strings.Cut(string(key), "good") // behind the name, by which it binds that
	for name, c := range map[string]struct {
		keys, signature []byte
		says            string
	}{
		"a damaged one":           {key, damaged, "for other data"},
		"for other data":          {key, g.Sign(good, []byte("other data")), "for other data"},
		"one by another key":      {g.Public([]string{other}), signature, "not one of the keys"},
		"one by another subkey":   {withoutSubkey, g.Sign(strangerSubkey, content), "not one of the keys"},
		"one by an expired key":   {g.Public([]string{old}), g.Sign(old, content, at(inThePast)...), "which has expired"},
		"an expired subkey's":     {g.Public([]string{oldSubkey}), g.Sign(oldSubkey, content, at(inThePast)...), "which has expired"},
		"one by a revoked key":    {g.Public([]string{revoked}), byRevoked, "which was revoked"},
		"an expired one":          {g.Public([]string{oldKey}), g.Sign(oldKey, content, append(at(inThePast), "--default-sig-expire", "1y")...), "has expired"},
		"one over SHA-1":          {key, g.Sign(good, content, "--digest-algo", "SHA1"), "broken hash"},
		"one of text":             {key, g.Sign(good, content, "--textmode"), "byte by byte"},
		"that of the key itself":  {key, []byte(certification), "cannot be verified"},
		"one with what it signs":  {key, g.Run(content, "--local-user", good, "--sign", "--compress-algo", "none"), "packet of type 4"},
		"a compressed one":        {key, g.Run(content, "--local-user", good, "--sign"), "no length"},
		"one inside a text":       {key, g.Run(content, "--local-user", good, "--clear-sign"), "for other data"},
		"the key as signature":    {key, key, "packet of type 6"},
		"an armored key":          {key, g.Public([]string{good}, "--armor"), "neither packets nor a line"},
		"half of one":             {key, signature[:len(signature)/2], "incomplete"},
		"half of an armored one":  {key, g.Sign(good, content, "--armor")[:100], "no end"},
		"a page":                  {key, []byte("<html>not found</html>"), "neither packets nor a line"},
		"nothing":                 {key, nil, "it is empty"},
		"too many":                {key, bytes.Repeat(signature, 17), "more than 16 packets"},
		"something huge":          {key, make([]byte, pgp.MaxSignature+1), "more than 65536"},
		"one by no key":           {nil, signature, "it is empty"},
		"one by a page":           {[]byte("<html>not found</html>"), signature, "neither packets nor a line"},
		"one by a huge key":       {make([]byte, pgp.MaxKeys+1), signature, "more than 262144"},
		"one by a crowd":          {append(bytes.Clone(key), bytes.Repeat([]byte("\xb0\x00"), 4096)...), signature, "more than 4096 packets"},
		"one by half a key":       {key[:len(key)/2], signature, "incomplete"},
		"one by a private key":    {g.Run(nil, "--export-secret-keys", good), signature, "private key"},
		"one by a damaged armor":  {bytes.Replace(g.Public([]string{good}, "--armor"), []byte("AA"), []byte("A*"), 1), signature, "armor is damaged"},
		"one by a signature":      {signature, signature, "packet of type 2"},
		"one with a literal next": {key, append(bytes.Clone(signature), "\xcb\x0ab\x00\x00\x00\x00\x00other"...), "packet of type 11"},
	} {
		t.Run(name, func(t *testing.T) {
			signer, err := verify(t.Context(), c.keys, c.signature, content)
			if fault.CodeOf(err) != fault.InvalidPackage || signer != "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("by %q, %v; want %q", signer, err, c.says)
			}
		})
	}
}

func TestPKG15SignatureOfMuch(t *testing.T) {
	g := openpgp.New(t)
	key := g.Key("key", "ed25519", "never")
	big := bytes.Repeat([]byte("0123456789abcdef"), 4<<20) // as big as a package may be
	expect.OK(t, expect.ErrorOf(verify(t.Context(), g.Public([]string{key}), g.Sign(key, big), big)))
	expect.Error(t, expect.ErrorOf(verify(t.Context(), g.Public([]string{key}), g.Sign(key, nil), nil)), nil, "nothing at all")
}

// What goes wrong with gpgv says nothing about the signature: it is verified
// again later.
func TestPKG15TroubleWithGPGV(t *testing.T) {
	g := openpgp.New(t)
	key := g.Key("key", "ed25519", "never")
	keys, signature := g.Public([]string{key}), g.Sign(key, content)
	sleep := "exec sleep 60\n"
	for name, c := range map[string]struct {
		script string
		says   string
	}{
		"it is not there":     {"", "gpgv is not in PATH"},
		"it is killed":        {"kill -9 $$\n", "killed"},
		"it does not end":     {sleep, "gave up"},
		"its child stays":     {"sleep 60 & " + sleep, "gave up"},
		"it is not a program": {"\x00", "gpgv"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := instead(t, c.script)
			t.Setenv("PATH", dir)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if strings.Contains(c.script, "sleep") {
				t.Setenv("PATH", dir+":/usr/bin:/bin")
				stop := time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("somebody gave up")) })
				defer stop.Stop()
			}
			_, err := verify(ctx, keys, signature, content)
			if err == nil || fault.CodeOf(err) == fault.InvalidPackage || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if missing := errors.Is(err, pgp.ErrNoProgram); missing != (c.script == "") || missing != (pgp.Find() != nil) {
				t.Errorf("missing: %t", missing)
			}
		})
	}
}

// Neither rights nor settings of the agent reach gpgv.
func TestGPGVRunsAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("PATH", instead(t, `
		test "$(/usr/bin/id -u) $(/usr/bin/id -G)" = "65534 65534" || exit 1
		test -z "$GNUPGHOME" || exit 1
		echo "[GNUPG:] GOODSIG 1 user" >&3
		echo "[GNUPG:] VALIDSIG `+strings.Repeat("1 ", 7)+`8 00 FINGERPRINT" >&3
		exit 2`))
	t.Setenv("GNUPGHOME", "/root")
	expect.Equal(t, expect.Value(pgp.Keys{}.Verify(t.Context(), pgp.Signature{}, content))(t), "FINGERPRINT", "signer")
}

// instead returns a directory with another gpgv in it, or nothing.
func instead(t *testing.T, script string) string {
	t.Helper()
	dir := expect.Value(os.MkdirTemp("/tmp", "gpgv"))(t) // where nobody may look
	t.Cleanup(func() { os.RemoveAll(dir) })
	expect.Check(t, os.Chmod(dir, 0o755))
	if script != "" {
		if script != "\x00" {
			script = "#!/bin/sh\n" + script
		}
		expect.Check(t, os.WriteFile(filepath.Join(dir, "gpgv"), []byte(script), 0o755))
	}
	return dir
}

func FuzzParse(f *testing.F) {
	signature, _ := base64.StdEncoding.DecodeString(ofSignature)
	armored := "-----BEGIN PGP %s-----\nComment: x\n\n" + ofSignature + "\n=abcd\n-----END PGP %[1]s-----\n"
	f.Add(signature)
	f.Add(fmt.Appendf(nil, armored, "SIGNATURE"))
	f.Add(fmt.Appendf(nil, armored, "PUBLIC KEY BLOCK"))
	f.Add([]byte("\x98\x01\x04\xb4\x01a\xc2\x01\x04\xc6\xff\x00\x00\x00\x01\x04\x99\x00\x01\x04\x9a\x00\x00\x00\x01\x04"))
	f.Add([]byte("\xc6\xc0\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, notKeys := pgp.ParseKeys(data)
		_, notSignature := pgp.ParseSignature(data)
		for _, err := range []error{notKeys, notSignature} {
			expect.True(t, err == nil || fault.CodeOf(err) == fault.InvalidPackage, "%v does not say that it is invalid", err)
		}
		// Text may hold blocks of both kinds.
		expect.True(t, notKeys != nil || notSignature != nil || data[0]&0x80 == 0, "keys and signature at once")
	})
}

// ofSignature is a signature by a key of Ed25519, in base64.
const ofSignature = "iHUEABYIAB0WIQQJrtBuPvArfYZD+cCzVWgNXP0mwwUCawIs3AAKCRCzVWgNXP0mw0kRAQDiTuL5XoFJJdOJ2vT0VKpV/VvX8IIayJ2Sr5Np3YFK3AEAlWT0kB39X5PvTiwBBKT4NitveOUvqkIkVtsU3rdglAY="
