package log_test

import (
	"encoding/json"
	"testing"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/expect"
)

func TestURI(t *testing.T) {
	for name, c := range map[string]struct{ keep, want log.Keep }{
		"defaults":         {log.Keep{}, log.Keep{MaxSize: log.DefaultCap, MaxFile: 2}},
		"what was asked":   {log.Keep{MaxSize: 10 << 20, MaxFile: 5}, log.Keep{MaxSize: 10 << 20, MaxFile: 5}},
		"one file":         {log.Keep{MaxFile: 1}, log.Keep{MaxSize: log.DefaultCap, MaxFile: 1}},
		"not too little":   {log.Keep{MaxSize: 1}, log.Keep{MaxSize: 4 << 10, MaxFile: 2}},
		"not too much":     {log.Keep{MaxFile: 1 << 30}, log.Keep{MaxSize: log.DefaultCap, MaxFile: 100}},
		"nothing negative": {log.Keep{MaxSize: -1, MaxFile: -1}, log.Keep{MaxSize: 4 << 10, MaxFile: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			const path = "/run/a b%/?#-json.log"
			uri := log.URI(path, c.keep)
			got, keep, ok := log.ParseURI(uri)
			expect.True(t, ok && got == path && keep == c.want, "%s is %q, %+v, %v; want %+v", uri, got, keep, ok, c.want)
		})
	}
	for _, foreign := range []string{
		"", "/run/x.log", "file:///run/x.log", "file:///run/x.log?driver=journald", "file://host/x.log?driver=json-file",
		"binary:///x?driver=json-file", "file:x?driver=json-file", "%", "file:///x?driver=json-file;%",
	} {
		if path, _, ok := log.ParseURI(foreign); ok {
			t.Errorf("%q is taken for one of ours: %q", foreign, path)
		}
	}
}

func TestSiteLimitsTheLog(t *testing.T) {
	site := log.Keep{MaxSize: 5 << 20, MaxFile: 3}
	for name, c := range map[string]struct{ asked, site, want log.Keep }{
		"nothing asked":     {log.Keep{}, site, site},
		"less":              {log.Keep{MaxSize: 1 << 20, MaxFile: 1}, site, log.Keep{MaxSize: 1 << 20, MaxFile: 1}},
		"more":              {log.Keep{MaxSize: 10 << 30, MaxFile: 100}, site, site},
		"more of one":       {log.Keep{MaxSize: 1 << 20, MaxFile: 4}, site, log.Keep{MaxSize: 1 << 20, MaxFile: 3}},
		"more than default": {log.Keep{MaxSize: 10 << 30, MaxFile: 100}, log.Keep{}, log.Keep{MaxSize: log.DefaultCap, MaxFile: 2}},
	} {
		expect.Equal(t, c.asked.Within(c.site), c.want, "%s", name)
	}
}

func TestNerdctlConfig(t *testing.T) {
	var got struct {
		Driver string
		Opts   map[string]string
	}
	check(t, json.Unmarshal([]byte(log.NerdctlConfig("/run/logs/abc-json.log", log.Keep{MaxSize: 5000, MaxFile: 3})), &got))
	if got.Driver != "json-file" || got.Opts["log-path"] != "/run/logs/abc-json.log" || got.Opts["max-size"] != "5000" || got.Opts["max-file"] != "3" {
		t.Errorf("got %+v", got)
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("file:///run/x.log?driver=json-file&max-size=1&max-file=2")
	f.Add(log.URI("/a b", log.Keep{}))
	f.Fuzz(func(t *testing.T, uri string) {
		path, keep, ok := log.ParseURI(uri)
		if !ok {
			return
		}
		again, kept, ok := log.ParseURI(log.URI(path, keep))
		expect.True(t, ok && again == path && kept == keep, "%q: %q %+v, again %q %+v %v", uri, path, keep, again, kept, ok)
	})
}
