package store

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// What can be read can be written, and what is written then is read as the same.
func fuzzRecord[R record](f *testing.F, seeds ...R) {
	for _, seed := range seeds {
		data, err := encode(seed)
		if err != nil {
			f.Fatal(err)
		}
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
		if err != nil {
			t.Fatalf("%s was read but cannot be written: %v", data, err)
		}
		second, err := decode[R](written)
		if err != nil {
			t.Fatalf("%s was written but cannot be read: %v", written, err)
		}
		again, err := encode(second)
		if err != nil || !bytes.Equal(written, again) {
			t.Fatalf("%s became %s: %v", written, again, err)
		}
		if !json.Valid(written) {
			t.Fatalf("%s is no JSON", written)
		}
	})
}

func FuzzManifestRecord(f *testing.F) {
	fuzzRecord(f, Manifest{}, Manifest{Epoch: 1, Version: 1<<64 - 1, ETag: `"x"`, Digest: digest.FromString("x"), Scope: "s"})
}

func FuzzDeploymentRecord(f *testing.F) {
	fuzzRecord(f, Deployment{}, Deployment{
		Phase:      "p",
		Desired:    Revision{Digest: digest.FromString("x"), Version: 1, Staged: []Staged{{Images: map[string]digest.Digest{"i": digest.FromString("i")}}}},
		Active:     &Revision{},
		Components: []Component{{Name: "c", Fault: &Fault{Code: "1"}}},
		Since:      time.Unix(1, 2).UTC(),
	})
}

func FuzzReportRecord(f *testing.F) {
	fuzzRecord(f, formerReport{}, formerReport{Deployment: "d", Body: []byte{0, 255}, Final: true})
}

// Whatever is a key of a report is the only one of that report.
func FuzzReportKey(f *testing.F) {
	for _, r := range []Report{{}, {Sequence: 1, Deployment: "d", Version: 1<<64 - 1, Weight: End}} {
		f.Add(reportKey(r), []byte("body"))
		f.Add(sequenceKey(r.Sequence), []byte(`{"deployment":"d","body":"AA=="}`))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		h, err := parseHeader(key, value)
		if err != nil || h.former != nil {
			return
		}
		r := Report{Sequence: h.sequence, Deployment: string(h.deployment), Version: h.version, Weight: h.weight}
		if again := reportKey(r); !bytes.Equal(again, key) || r.check() != nil {
			t.Fatalf("%x became %x: %v", key, again, r.check())
		}
	})
}
