package git

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

const object = "da39a3ee5e6b4b0d3255bfef95601890afd80709"

// FuzzReadTree feeds what git lists of a tree, whose names anybody can choose.
func FuzzReadTree(f *testing.F) {
	for _, list := range []string{
		"100644 blob " + object + "      12\tapps/a.yaml\x00",
		"100644 blob " + object + "      12\tapps/a.yaml\x00100755 blob " + object + " 4000000000\tapps/b c.YML\x00",
		"120000 blob " + object + "       3\tapps/l\x00",
		"160000 commit " + object + "       -\tapps/sub\x00",
		"100644 blob " + object + "     BAD\ta\x00",
		"100644 blob " + object + " 1\ta\tb\n.yaml",
		"\x00\x00",
	} {
		f.Add([]byte(list), "apps")
		f.Add([]byte(list), "")
	}
	l := wfm.Limits{Document: 1 << 10, Expanded: 4 << 10, Entries: 8}
	f.Fuzz(func(t *testing.T, list []byte, folder string) {
		files, found, err := readTree(bufio.NewReaderSize(bytes.NewReader(list), maxEntry), folder, l)
		expect.Require(t, err == nil || len(files) == 0 && !found, "files beside the error %v", err)
		expect.Require(t, err == nil || isRefusal(err) || errors.Is(err, errBroken) || errors.Is(err, errShort), "unexpected error %v", err)
		var sum int64
		for _, e := range files {
			sum += e.size
			if e.size < 0 || e.size > l.Document || !isObjectID(e.id) || !isYAML(e.path) || e.mode == symlink || e.mode == submodule {
				t.Fatalf("accepted %+v", e)
			}
			expect.Require(t, folder == "" || strings.HasPrefix(e.path, folder+"/"), "accepted %+v outside %q", e, folder)
		}
		expect.Require(t, len(files) <= l.Entries && sum <= l.Expanded, "accepted %d files with %d bytes", len(files), sum)
	})
}

// FuzzReadObject feeds what git says of an object that it was asked for.
func FuzzReadObject(f *testing.F) {
	f.Add([]byte(object + " blob 3\nabc\n"))
	f.Add([]byte(object + " blob 3\nab"))
	f.Add([]byte(object + " blob 3\nabcd"))
	f.Add([]byte(object + " blob 99999999999\n"))
	f.Add([]byte(object + " tree 0\n\n"))
	f.Add([]byte(object + " missing\n"))
	f.Add([]byte(object + "  blob 3\nabc\n"))
	f.Add([]byte(strings.Repeat("a", maxEntry)))
	f.Fuzz(func(t *testing.T, answer []byte) {
		body, err := readObject(bufio.NewReaderSize(bytes.NewReader(answer), maxEntry), object, 1<<10)
		switch {
		case err == nil && !bytes.HasPrefix(answer, fmt.Appendf(nil, "%s blob ", object)), len(body) > 1<<10:
			t.Fatalf("accepted %q", body)
		case err == nil && !bytes.Contains(answer, append(body[:len(body):len(body)], '\n')):
			t.Fatalf("%q is not part of the answer", body)
		case err != nil && !errors.Is(err, errBroken) && !errors.Is(err, errShort) && !errors.Is(err, wfm.ErrTooLarge):
			t.Fatalf("unexpected error %v", err)
		}
	})
}

// FuzzParseTimes feeds what git says of commits, whose times anybody can choose.
func FuzzParseTimes(f *testing.F) {
	f.Add("1700000000 " + object + "\n1690000000 " + object + "\n")
	f.Add("18446744073709551615 " + object)
	f.Add("-1 " + object)
	f.Add("")
	f.Fuzz(func(t *testing.T, list string) {
		times, err := parseTimes(list)
		if err != nil {
			return
		}
		// A version is greater than that of the commits before, and has the
		// present commit's time where the clocks were right.
		version := order(times)
		if len(times) > 1 && version <= order(times[1:]) || version < times[0]*1000 || version > maxTime*1000+uint64(len(times)) {
			t.Fatalf("version %d of %d", version, times)
		}
	})
}

// FuzzExplain feeds what git says when it fails, into which a server can put
// words.
func FuzzExplain(f *testing.F) {
	for _, m := range meanings {
		f.Add("fatal: " + m.text + "\nremote: hello")
	}
	f.Add("fatal: unable to access 'https://a/ Permission denied': ")
	f.Fuzz(func(t *testing.T, stderr string) {
		const secret = "a-secret-token"
		err := explain("ask", &exitError{status: "exit status 128", stderr: stderr + secret + stderr, secret: []string{secret}}, Unreachable)
		if text := err.Error(); strings.Contains(text, secret) || len(text) > 600 || strings.ContainsAny(text, "\n\x1b\x00") {
			t.Fatalf("error is %q", text)
		}
	})
}

// FuzzAuthorize makes headers of what a file holds: one line each, or an error
// that says nothing of it.
func FuzzAuthorize(f *testing.F) {
	for _, seed := range []string{"", "token", "user:password", "Bearer abc", "basic YTpi", "a\nb", "a b", " token \n", "\x00", "Bearer ", ":", "ä"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		header, secret, err := authorize(token)
		switch {
		case err != nil && (header != "" || len(secret) > 0):
			t.Fatalf("%q beside %v", header, err)
		case err == nil && (len(secret) == 0 || strings.ContainsFunc(header, func(c rune) bool { return c < ' ' || c > '~' })):
			t.Fatalf("%q becomes %q", token, header)
		}
	})
}

// FuzzNames: no branch or folder is taken for an option, or leads elsewhere.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"main", "-f", "--upload-pack=x", "a/../b", "a..b", "refs/heads/a", "a b", "a\n", "@{u}", ".a", "a.lock", "a/-b", ""} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, branch, folder string) {
		s, err := New(Options{URL: "https://git.example/a", Dir: "/tmp", Branch: branch, Path: folder})
		if err != nil {
			return
		}
		for _, name := range []string{s.options.Branch, s.folder} {
			if strings.HasPrefix(name, "-") && name == s.options.Branch || strings.ContainsAny(name, "\n\x00") || strings.HasPrefix(name, "/") ||
				strings.Contains("/"+name+"/", "/../") {
				t.Fatalf("branch %q, folder %q", s.options.Branch, s.folder)
			}
		}
	})
}
