package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/margolite/margolite/policy"
)

// checks validate texts; a field's tag names its check.
var checks = map[string]func(string) error{
	"argument":      argument,
	"baseURL":       baseURL,
	"branch":        branch,
	"clientID":      pattern(pathName, 256, "expected letters, digits and . _ ~ -"),
	"collector":     collector,
	"containerd":    containerd,
	"documentURL":   documentURL,
	"host":          host,
	"images":        images,
	"line":          line,
	"listenAddress": listenAddress,
	"ownCollector":  ownCollector,
	"path":          path,
	"registry":      registry,
	"secret":        secret,
	"source":        source,
	"spiffeID":      spiffeID,
	"treePath":      treePath,
	"trustBundle":   trustBundle,
	"word":          word,
	"access":        policy.CheckAccess, "capability": policy.CheckCapability, "device": policy.CheckDevice,
	"mount": policy.CheckMount, "namespaces": policy.CheckNamespace, "unconfined": policy.CheckUnconfined,

	"deployment": pattern(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`, 36, "expected the id of a deployment, a UUID, got %s"),
	// The form that a capabilities document requires.
	"deviceID": pattern(pathName+"(?:/"+pathName+")*", 256, "expected names of letters, digits and . _ ~ - with / between them"),
	// The form that useradd and the like accept, but no number.
	"group": pattern(`[0-9]*[A-Za-z._][A-Za-z0-9._-]*|[0-9]+-[A-Za-z0-9._-]*`, 32, "expected the name of a group, got %s"),
	// A containerd identifier.
	"namespace": pattern(`[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*`, 76, "expected at most 76 letters and digits, with single . _ - between them"),
	// A wrong value is not repeated: it could be a secret.
	"pin":    pattern(`[A-Za-z0-9+/]{43}=`, 44, "expected the SHA-256 of a public key in base64, 44 characters that end with ="),
	"shared": pattern(`\*|[A-Za-z0-9][A-Za-z0-9_.-]*`, 256, `expected "*", or the name of a volume, network or container, got %s`),
}

// named are the checks of values that may name a file next to a provisioning file.
var named = []string{"path", "secret", "trustBundle"}

// lists validate a whole list after each of its values has passed.
var lists = map[string]func([]string) error{
	"command": policy.CheckCommand,
	"keys": func(files []string) error {
		if len(files) == 0 {
			return errors.New("expected at least one file of public keys")
		}
		return nil
	},
}

func line(s string) error {
	switch {
	case len(s) > 256:
		return errors.New("expected at most 256 bytes")
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("expected text without control characters")
	}
	return nil
}

// A pattern is the form of a whole text of at most most bytes.
func pattern(form string, most int, problem string) func(string) error {
	return func(s string) error {
		switch {
		case len(s) <= most && regexp.MustCompile("^(?:"+form+")$").MatchString(s):
			return nil
		case strings.Contains(problem, "%s"):
			return fmt.Errorf(problem, quote(s))
		}
		return errors.New(problem)
	}
}

const (
	// pathName is one segment of a URL's path, except . and .. which change the path.
	pathName = `(?:\.{0,2}[A-Za-z0-9_~-]|\.{3})[A-Za-z0-9._~-]*`
	// branchName is a Git branch name (git-check-ref-format) of common letters.
	branchName = `[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*`
)

var (
	hostLetters = pattern(`[A-Za-z0-9._:\[\]%-]*`, 262, "")
	branches    = pattern(branchName+"(?:/"+branchName+")*", 200, noBranch)
	fileName    = pattern(`[A-Za-z0-9_][A-Za-z0-9._-]*`, 128, "expected the name of a file beside this one: letters, digits and . _ -")
)

// path must be absolute: the daemon has no working directory of its own.
func path(s string) error {
	if !filepath.IsAbs(s) || len(s) > 4096 || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("expected an absolute path, got %s", quote(s))
	}
	return nil
}

// secret is the path of a file. A wrong value is not repeated: it could be the secret.
func secret(s string) error {
	if path(s) != nil {
		return errors.New("expected the absolute path of a file with the secret")
	}
	return nil
}

func containerd(s string) error {
	if s == Embedded || path(s) == nil {
		return nil
	}
	return fmt.Errorf("expected %s or the absolute path of a socket, got %s", Embedded, quote(s))
}

func trustBundle(s string) error {
	if strings.HasPrefix(s, "https://") {
		return documentURL(s)
	}
	if strings.Contains(s, "://") {
		return errors.New("expected the absolute path of a file, or a URL that begins with https://")
	}
	return path(s)
}

// webURL checks a URL with one of the schemes, and with a query if allowed. Errors do not repeat
// the URL, which may contain a password; instead says where that belongs.
func webURL(query bool, instead string, schemes ...string) func(string) error {
	return func(s string) error {
		u, err := url.Parse(s)
		switch {
		case err != nil || len(s) > 2048:
			return errors.New("expected a URL such as https://wfm.example.com")
		case !slices.Contains(schemes, u.Scheme):
			return errors.New("expected a URL that begins with " + strings.Join(schemes, ":// or ") + "://")
		case host(u.Host) != nil:
			return errors.New("expected a host after https://, with a port if it is not 443")
		case u.User != nil:
			return errors.New("expected a URL without user and password; " + instead)
		case u.Fragment != "" || strings.Contains(s, "#"):
			return errors.New("expected a URL without a fragment")
		case !query && strings.Contains(s, "?"):
			return errors.New("expected a URL without a query")
		}
		return nil
	}
}

var (
	// baseURL is extended by paths.
	baseURL = webURL(false, "put the credentials of a gateway into the file that wfm.authorization names", "https")
	// documentURL is the location of one document.
	documentURL = webURL(true, "this server needs none", "https")
	// collector is the address of an OpenTelemetry collector.
	collector  = webURL(false, "this server needs none", "http", "https")
	repository = webURL(false, "put the token into the file that wfm.git.token names", "git+https")
)

const gitScheme = "git+https://"

func source(s string) error {
	switch {
	case strings.HasPrefix(s, gitScheme):
		if err := repository(s); err != nil {
			return err
		}
		if u, err := url.Parse(s); err != nil || strings.Trim(u.Path, "/") == "" {
			return errors.New("expected the path of a repository after the host")
		}
		return nil
	case !strings.HasPrefix(s, "https://") && strings.Contains(s, "://"):
		return errors.New("expected a URL that begins with https:// or git+https://")
	}
	return baseURL(s)
}

// ownCollector is for the agent's own metrics: without TLS only on this device (OBS-12).
func ownCollector(s string) error {
	if err := collector(s); err != nil {
		return err
	}
	u, _ := url.Parse(s) // it is valid
	at, err := netip.ParseAddr(u.Hostname())
	if u.Scheme == "http" && u.Hostname() != "localhost" && (err != nil || !at.IsLoopback()) {
		return errors.New("expected a URL that begins with https://, because the collector is not on this device")
	}
	return nil
}

// listenAddress is an address to listen on; a port alone means the loopback.
func listenAddress(s string) error {
	rest, loopback := strings.CutPrefix(s, ":")
	if loopback {
		rest = "127.0.0.1:" + rest
	}
	if at, err := netip.ParseAddrPort(rest); err != nil || at.Port() == 0 {
		return fmt.Errorf("expected :port, or address:port such as 192.0.2.1:9464, got %s", quote(s))
	}
	return nil
}

func spiffeID(s string) error {
	id, err := spiffeid.FromString(s)
	if err != nil || id.Path() == "" || len(s) > 2048 {
		return fmt.Errorf("expected a SPIFFE ID such as spiffe://factory.example/margo/wfm/one, got %s", quote(s))
	}
	return nil
}

const noBranch = "expected the name of a branch: letters, digits and . _ - with / between names"

func branch(s string) error {
	if strings.Contains(s+"/", ".lock/") {
		return errors.New(noBranch)
	}
	return branches(s)
}

func treePath(s string) error {
	if !fs.ValidPath(s) || s == "." || len(s) > 1024 || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("expected a path within the repository, such as sites/plant-a, got %s", quote(s))
	}
	return nil
}

// registry is a host that images come from, or "*" for all.
func registry(s string) error {
	if s == "*" {
		return nil
	}
	return host(s)
}

// images is a prefix of full image names, or "*" for all others.
func images(s string) error {
	if s == "*" {
		return nil
	}
	at, rest, deep := strings.Cut(s, "/")
	problem := fmt.Errorf(`expected "*", or a registry with a path in it or without, such as registry.example.com/vendor, got %s`, quote(s))
	if host(at) != nil || !strings.ContainsAny(at, ".:") && at != "localhost" || len(s) > 255 {
		return problem
	}
	for name := range strings.SplitSeq(rest, "/") {
		if deep && (name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "") {
			return problem
		}
	}
	return nil
}

func argument(s string) error {
	if len(s) > 4096 || strings.ContainsFunc(s, unicode.IsControl) {
		return errors.New("expected at most 4096 bytes without control characters")
	}
	return nil
}

func word(s string) error {
	if s == "" {
		return errors.New("expected text, got nothing")
	}
	return line(s)
}

func host(s string) error {
	problem := fmt.Errorf("expected a host, or host:port, got %s", quote(s))
	u, err := url.Parse("https://" + s)
	if err != nil || u.Host != s || u.Hostname() == "" || hostLetters(s) != nil {
		return problem
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return problem
		}
	} else if strings.HasSuffix(s, ":") {
		return problem
	}
	return nil
}
