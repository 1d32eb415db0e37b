package pemfile_test

import (
	"bytes"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/pemfile"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

func TestCertificatesAsPeoplePutThemTogether(t *testing.T) {
	authority := expect.Value(pki.NewServerAuthority("Web", time.Now()))(t)
	one := string(authority.RootPEM())
	for name, c := range map[string]struct {
		file string
		want int
		says string
	}{
		"nothing":                      {"", 0, ""},
		"one":                          {one, 1, ""},
		"a byte order mark":            {"\xef\xbb\xbf" + one, 1, ""},
		"joined without a line break":  {strings.Repeat(strings.TrimSpace(one), 3), 3, ""},
		"text between":                 {"# root\n" + one + "subject=/CN=x\n" + one, 2, ""},
		"lines as Windows ends them":   {strings.ReplaceAll(one+one, "\n", "\r\n"), 2, ""},
		"an end that is missing":       {one + strings.ReplaceAll(one, "-----END CERTIFICATE-----", "") + one, 0, "line "},
		"one that is cut":              {one + one[:len(one)/2], 0, "cannot read the PEM block"},
		"a character of something":     {one + strings.Replace(one, "M", "!", 1), 0, "cannot read the PEM block"},
		"a beginning and nothing more": {"\n\n-----BEGIN CERTIFICATE-----", 0, "line 3:"},
		"no certificate in a block":    {one + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), 0, "certificate 2"},
		"more than may be":             {strings.Repeat(one, 4), 0, "more than 3"},
	} {
		got, err := pemfile.Certificates([]byte(c.file), 3)
		if len(got) != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %d certificates, %v; want %d, %q", name, len(got), err, c.want, c.says)
		}
	}
}

func FuzzTidy(f *testing.F) {
	f.Add([]byte("-----BEGIN A-----\nAAAA\n-----END A----------BEGIN B-----\nAAAA\n-----END B-----"))
	f.Add([]byte("\xef\xbb\xbf-----BEGIN A-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tidy, err := pemfile.Tidy(data)
		if err != nil {
			return
		}
		blocks := 0
		for rest := tidy; ; blocks++ {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
		}
		if begun := bytes.Count(tidy, []byte("-----BEGIN ")); begun != blocks {
			t.Errorf("%d of %d blocks are read", blocks, begun)
		}
	})
}
