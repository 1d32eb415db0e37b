package store

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/expect"
)

// What can be read can be written, and what is written then is read as the same.
func fuzzRecord[R record](f *testing.F, seeds ...R) {
	for _, seed := range seeds {
		data := expect.Value(encode(seed))(f)
		f.Add(data)
		f.Add(data[:len(data)-1])
		f.Add(append(data, data...))
	}
	f.Add([]byte("null"))
	f.Add([]byte(`{"version":1e3,"unknown":[[[[]]]]}`))
	f.Add([]byte(`{"desired":{"digest":"sha256:0"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := decode[R](data)
		if err != nil {
			return
		}
		written, err := encode(first)
		expect.Require(t, err == nil, "%s was read but cannot be written: %v", data, err)
		second, err := decode[R](written)
		expect.Require(t, err == nil, "%s was written but cannot be read: %v", written, err)
		again, err := encode(second)
		expect.Require(t, err == nil && bytes.Equal(written, again), "%s became %s: %v", written, again, err)
		expect.Require(t, json.Valid(written), "%s is no JSON", written)
	})
}

func FuzzManifestRecord(f *testing.F) {
	fuzzRecord(f, Manifest{}, Manifest{Epoch: 1, Version: 1<<64 - 1, ETag: `"x"`, Digest: digest.FromString("x"), Scope: "s"})
}

func FuzzDeploymentRecord(f *testing.F) {
	fuzzRecord(f, Deployment{}, Deployment{
		Phase:      "p",
		Desired:    Revision{Digest: digest.FromString("x"), Version: 1, Staged: []Staged{{Images: map[string]digest.Digest{"i": digest.FromString("i")}}}, Summary: &Summary{Unread: []string{"p"}}},
		Active:     &Revision{},
		Components: []Component{{Name: "c", Fault: &Fault{Code: "1"}}},
		Since:      time.Unix(1, 2).UTC(),
	})
}

// Whatever is a key of a report is the only one of that report.
func FuzzReportKey(f *testing.F) {
	for _, r := range []Report{{}, {Sequence: 1, Deployment: "d", Version: 1<<64 - 1, Weight: End}} {
		f.Add(reportKey(r))
		f.Add(sequenceKey(r.Sequence))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		r, err := parseReportKey(key)
		if err != nil {
			return
		}
		if again := reportKey(r); !bytes.Equal(again, key) || r.check() != nil {
			t.Fatalf("%x became %x: %v", key, again, r.check())
		}
	})
}

func FuzzEntryRecord(f *testing.F) {
	fuzzRecord(f, Entry{}, Entry{
		Sequence: 1<<64 - 1, Time: time.Unix(1, 2).UTC(), Kind: "k", Deployment: "d", Revision: digest.FromString("r"),
		Version: 1, By: "b", Text: "<ä\u2028>", Chain: digest.FromString("c"),
	})
}

func FuzzJournalEnds(f *testing.F) {
	fuzzRecord(f, journalEnds{}, journalEnds{Anchor: Mark{Sequence: 1}, Head: Mark{1<<64 - 1, digest.FromString("c")}})
}

// Whatever an entry is made of, it can be kept, is read as it was kept, and has
// a chain that no other entry has.
func FuzzEntryIsTidied(f *testing.F) {
	f.Add("k", "d", "r", "b", "t", int64(1), int64(2))
	f.Add("\xff", "\n", "\u202e", "\x00", strings.Repeat("<", 5000), int64(-1<<62), int64(1<<62))
	f.Add("", strings.Repeat("ä", 300), strings.Repeat("\xe2\x80", 300), "", strings.Repeat("x", 2047)+"ä", int64(253402300799), int64(999999999))
	f.Fuzz(func(t *testing.T, kind, deployment, revision, by, text string, seconds, nanos int64) {
		e := Entry{Sequence: 1, Kind: kind, Deployment: deployment, Revision: digest.Digest(revision), By: by, Text: text, Time: time.Unix(seconds, nanos)}
		e = e.Tidy()
		e.Chain = e.Link("")
		value, err := encode(e)
		expect.Require(t, err == nil, "%+v cannot be kept: %v", e, err)
		expect.Require(t, len(value) <= maxEntry, "it has %d bytes", len(value))
		again, err := decodeEntry(sequenceKey(1), value)
		expect.Require(t, err == nil && again == e && again.Link("") == e.Chain, "%+v became %+v: %v", e, again, err)
		moved := e
		moved.Kind, moved.Deployment = e.Kind+e.Deployment, ""
		expect.Require(t, e.Deployment == "" || moved.Link("") != e.Chain, "two entries have one chain")
		if tidied := again.Tidy(); tidied != again {
			t.Fatalf("%+v is tidied again to %+v", again, tidied)
		}
	})
}

func FuzzEntryDecode(f *testing.F) {
	e := Entry{Sequence: 1, Time: time.Unix(1, 2).UTC(), Kind: "k"}
	e.Chain = e.Link("")
	value := expect.Value(encode(e))(f)
	f.Add(sequenceKey(1), value)
	f.Add(sequenceKey(2), value)
	f.Add([]byte("odd"), value)
	f.Add(sequenceKey(1), []byte(`{"sequence":1,"time":"9999-12-31T23:59:59-01:00","kind":"","chain":""}`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		e, err := decodeEntry(key, value)
		expect.Require(t, err != nil || bytes.Equal(sequenceKey(e.Sequence), key) && e.check() == nil, "%x: %s became %+v", key, value, e)
	})
}

// Whatever lies beside the database is read as it was written, or not at all.
func FuzzSettingsFile(f *testing.F) {
	path := f.TempDir() + "/settings.json"
	expect.Check(f, writeSettings(path, map[string][]byte{"locks": []byte("held\xff"), "": nil}))
	data := expect.Value(os.ReadFile(path))(f)
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Add(sealed(bucketSettings, nil, []byte(`{"a":"AA=="} {}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := t.TempDir() + "/settings.json"
		expect.Check(t, os.WriteFile(path, data, 0o600))
		first, err := readSettings(path)
		if err != nil {
			return
		}
		expect.Check(t, writeSettings(path, first))
		if second, err := readSettings(path); err != nil || !maps.EqualFunc(first, second, bytes.Equal) {
			t.Fatalf("%q became %q, %v", first, second, err)
		}
	})
}

func FuzzDamageRecord(f *testing.F) {
	f.Add(Damage{At: time.Unix(1, 0), Text: "a\nb", Kept: "margolite.db.bad"}.encode())
	f.Add([]byte("1\n\n"))
	f.Add([]byte("x\ny\nz"))
	f.Fuzz(func(t *testing.T, record []byte) {
		d, ok := parseDamage(record)
		if again, whole := parseDamage(d.encode()); ok && (!whole || again != d) {
			t.Fatalf("%q became %+v and then %+v", record, d, again)
		}
	})
}

func FuzzSeal(f *testing.F) {
	f.Add(seal{schema, 1, 2}.encode())
	f.Add(seal{schema, 1, 2}.encode()[:8])
	f.Fuzz(func(t *testing.T, stored []byte) {
		s, err := parseSeal(stored)
		if err == nil && !bytes.Equal(s.encode(), stored) {
			t.Fatalf("%x became %x", stored, s.encode())
		}
	})
}
