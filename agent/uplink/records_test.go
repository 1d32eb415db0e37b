package uplink

import (
	"bytes"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// damaged are records that anything may have happened to.
type damaged []byte

func (d damaged) Setting(string) ([]byte, bool, error) { return bytes.Clone(d), d != nil, nil }

func (d damaged) Commit(string, store.Change) error { return nil }

// FuzzRecords reads what an uplink keeps. A client id that is taken from there
// can stand in a path, or no client is made of it.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{
		"", "0", "1777636800", "-1", "9223372036854775808", "{}", "null", `{"url":"https://a","id":"b","certificate":"c","root":"AA=="}`,
		`{"url":"https://a","id":"../.."}`, `{"id":"a\r\nb"}`, `{"root":1}`, "[",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		if at, err := KnownTime(damaged(record)); err != nil && !at.Equal(time.Time{}) {
			t.Fatalf("%s beside %v", at, err)
		}
		c, err := readClient(damaged(record))
		expect.Require(t, err == nil || c.ID == "" && c.URL == "" && len(c.Root) == 0, "%+v beside %v", c, err)
		made, err := wfm.New(wfm.Options{URL: "https://wfm.example", Dialect: margo.RC2, ClientID: c.ID})
		expect.Require(t, err != nil && made == nil, "a client without TLS")
	})
}
