package registry

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"
)

func TestChallengesAreReadInAnyForm(t *testing.T) {
	for name, test := range map[string]struct {
		fields        []string
		scheme, realm string
		scope         string
	}{
		"Docker's":                  {[]string{`Bearer realm="https://auth.example/token",service="r",scope="repository:a/b:pull,push"`}, "bearer", "https://auth.example/token", "repository:a/b:pull,push"},
		"a password":                {[]string{`basic Realm="registry"`}, "basic", "registry", ""},
		"several fields":            {[]string{`Basic realm="b"`, `Bearer realm="t"`}, "bearer", "t", ""},
		"several in a field":        {[]string{`Negotiate, Basic realm="b", charset="UTF-8", Bearer realm="t", scope="s"`}, "bearer", "t", "s"},
		"one of them is not known":  {[]string{`Negotiate YII/x+y==, Digest realm=d, Basic realm="b"`}, "basic", "b", ""},
		"an unquoted URL":           {[]string{`Bearer realm=https://auth.example/token, scope=s`}, "bearer", "https://auth.example/token", "s"},
		"quotes and spaces in them": {[]string{`Bearer  realm = "a \"b\" c\\" ,, scope="x"`}, "bearer", `a "b" c\`, "x"},
		"an end too early":          {[]string{`Bearer realm="t`}, "bearer", "", ""},
		"no scheme that is known":   {[]string{`Digest realm="d"`, ``, `=,`}, "", "", ""},
		"a parameter of nothing":    {[]string{`realm="d"`}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, ok := challengeOf(http.Header{"Www-Authenticate": test.fields})
			if ok != (test.scheme != "") || c.scheme != test.scheme || c.parameters["realm"] != test.realm || c.parameters["scope"] != test.scope {
				t.Errorf("got %+v, %v", c, ok)
			}
		})
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull"`)
	f.Add(`Negotiate YII=, Basic realm="\"", charset="UTF-8"`)
	f.Add(strings.Repeat(`x a=b,`, 40))
	f.Add(`Bearer realm`)
	f.Fuzz(func(t *testing.T, field string) {
		all := challengesIn(field)
		if len(all) > maxChallenges {
			t.Errorf("%d challenges", len(all))
		}
		for _, c := range all {
			if c.scheme == "" || tokenEnd(c.scheme) != len(c.scheme) || len(c.parameters) > maxParameters {
				t.Errorf("read %+v", c)
			}
		}
	})
}

func FuzzDetails(f *testing.F) {
	f.Add([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"Tag":"1"}}]}`))
	f.Add([]byte(`{"errors":[{"code":"a\nb","message":"\u001b[31m"},{},{},{},{},{}]}`))
	f.Add([]byte(`{"errors":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		details := detailsIn(body)
		if len(details) > maxDetails {
			t.Errorf("%d details", len(details))
		}
		for _, d := range details {
			for _, text := range []string{d.Code, d.Message} {
				if len(text) > maxDetailBytes+len("...") || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("shows %q", text)
				}
			}
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add([]byte(`{"token":"secret","expires_in":300,"issued_at":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"access_token":"secret","expires_in":1e308,"refresh_token":"secret"}`))
	f.Add([]byte(`{"token":"secret","expires_in":"secret"}`))
	f.Add([]byte(`{"expires_in":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Now()
		got, err := tokenIn(data, now)
		switch {
		case err != nil:
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("tells a secret: %v", err)
			}
		case got.value == "", !got.until.IsZero() && (got.until.Before(now) || got.until.After(now.Add(longestTime))):
			t.Errorf("took %+v", got)
		}
	})
}

func FuzzReferrers(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":1,"urls":["https://x"],"data":"eA=="}]}`))
	f.Add([]byte(`{"manifests":[{}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		refer, err := referrersIn(data)
		if err != nil {
			return
		}
		for _, m := range refer {
			if m.Digest.Validate() != nil || m.URLs != nil || m.Data != nil {
				t.Errorf("took %+v", m)
			}
		}
	})
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 10-99/100")
	f.Add("bytes 10-99/*")
	f.Add("bytes */100")
	f.Add("bytes 100-199/1000")
	f.Fuzz(func(t *testing.T, field string) {
		if startsAt(field, 10, 100) && !strings.HasPrefix(field, "bytes 10-") {
			t.Errorf("took %q", field)
		}
	})
}
