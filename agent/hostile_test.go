package agent_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/mis"
)

// Whom the tests of hostile servers are about.
const (
	hostileDomain = "factory.example"
	hostileWFM    = "plant"
	hostileClient = deviceID

	brief = 5 * time.Second // is how long a device listens to a WFM that is silent
)

// What a hostile server can make the device spend.
const (
	mostMemory  = 8 << 20 // above that of an agent at rest, with the default limits of manifest and document
	mostBundle  = 4 << 20 // limits.Bundle
	mostRecords = 1 << 20 // that the database grows by, which grows in steps
)

// hostileOptions are short in time and room, so that the tests are.
func hostileOptions(url string) uplink.Options {
	return uplink.Options{
		URL: url, Timeout: brief,
		Limits: wfm.Limits{Bundle: mostBundle, Expanded: 8 << 20, Entries: 500, Speed: 1 << 20},
	}
}

// raced says that the race detector is at work, which needs memory of its own.
func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// hostile is a device, and a WFM that turns hostile.
type hostile struct {
	t         *testing.T
	authority *pki.Authority
	wfm       *wfmsim.Server
	device    *remote
	revision  int
	resting   *view

	goroutines int // without a connection
}

// newHostile makes a device that runs two deployments in their first revision, and
// listens to a silent WFM for this long.
func newHostile(t *testing.T, timeout time.Duration, change ...func(*wfmsim.Options)) *hostile {
	t.Helper()
	h := &hostile{t: t, authority: must(pki.NewAuthority(hostileDomain, time.Now()))}
	h.serve(change...)
	o := hostileOptions(h.wfm.URL())
	o.Timeout = timeout
	h.device = newRemote(t, h.authority, o)
	h.publish()
	h.settles()
	h.publish() // what is loaded for an update is loaded before anything is counted
	h.settles()
	h.device.connect(h.wfm.URL())
	h.goroutines = h.device.do("look").Goroutines
	for range 20 { // those of connections end
		h.goroutines = min(h.goroutines, h.device.do("look").Goroutines)
	}
	return h
}

// serve starts the WFM.
func (h *hostile) serve(change ...func(*wfmsim.Options)) {
	t := h.t
	t.Helper()
	svid, err := h.authority.IssueWFM(hostileWFM)
	if err != nil {
		t.Fatal(err)
	}
	o := wfmsim.Options{
		ID: identity.ID{TrustDomain: hostileDomain, WFM: hostileWFM}, SVID: svid.TLS(), Bundle: h.authority.Bundle(),
		Flaws: h.authority.Flaws(), Flawed: func(flaw string) (tls.Certificate, error) { return h.authority.IssueFlawed(hostileWFM, flaw) },
	}
	for _, c := range change {
		c(&o)
	}
	if h.wfm, err = wfmsim.New(o); err != nil {
		t.Fatal(err)
	}
	if err := h.wfm.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.wfm.Close() })
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// publish makes the next revision of both deployments what is wanted.
func (h *hostile) publish() {
	h.t.Helper()
	h.revision++
	for _, id := range []string{first, second} {
		if _, err := h.wfm.Publish(hostileClient, []byte(document(id, fmt.Sprintf("%d.0.0", h.revision)))); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *hostile) inject(faults ...fault.Fault) {
	h.t.Helper()
	for _, f := range faults {
		if _, err := h.wfm.Faults().Inject(f); err != nil {
			h.t.Fatal(err)
		}
	}
}

// settles lets the device poll, and waits until it runs what is published and
// nothing else goes on.
func (h *hostile) settles() {
	h.t.Helper()
	h.device.eventually("a good manifest is accepted", func(*view) bool {
		v := h.device.do("sync")
		silent := strings.Contains(v.Err, "asked for silence") || strings.Contains(v.Err, "too long") // a busy machine
		if v.Err != "" && !silent {
			h.t.Fatalf("a good manifest is not accepted: %s", v.Err)
		}
		return v.Err == ""
	})
	h.runs()
}

// runs waits until the device runs what is published.
func (h *hostile) runs() {
	h.t.Helper()
	v := h.device.eventually("it runs what is published", func(v *view) bool { return h.running(v) && v.Outbox == 0 })
	if h.resting != nil && v.Disk > h.resting.Disk+mostRecords {
		h.t.Errorf("the state directory has %d bytes, had %d", v.Disk, h.resting.Disk)
	}
	h.resting = h.device.do("rest")
}

// running says whether what is published runs.
func (h *hostile) running(v *view) bool {
	var want []string
	for _, id := range []string{first, second} {
		want = append(want, fmt.Sprintf("%s-main %d.0.0", id, h.revision))
	}
	slices.Sort(want)
	return slices.Equal(v.Running, want)
}

// refuses lets the device poll a hostile WFM, once. Nothing may come of it but an
// error that says what is wrong.
func (h *hostile) refuses(want string) *view {
	h.t.Helper()
	before := h.device.do("rest")
	after := h.device.do("sync")
	if after.Err == "" || !strings.Contains(after.Err, want) {
		h.t.Errorf("the error is %q, want one with %q", after.Err, want)
	}
	h.unchanged(before, after)
	return after
}

// unchanged compares the device before and after it met something hostile.
func (h *hostile) unchanged(before, after *view) {
	h.t.Helper()
	if after.Version != before.Version || after.Manifest != before.Manifest ||
		!slices.Equal(after.Running, before.Running) || after.Steps != before.Steps {
		h.t.Errorf("the device changed: %s\nwas %s", after, before)
	}
	h.bounded(before, after)
}

// bounded compares what was spent with what may be.
func (h *hostile) bounded(before, after *view) {
	h.t.Helper()
	if after.Memory > mostMemory && !raced() {
		h.t.Errorf("it took %d KiB of memory, at most %d are allowed", after.Memory>>10, mostMemory>>10)
	}
	if after.MostDisk > mostBundle || after.Disk > before.Disk+mostBundle+mostRecords {
		h.t.Errorf("it took %d bytes in the state directory, %d of incoming artifacts at a time", after.Disk-before.Disk, after.MostDisk)
	}
	for _, text := range []string{after.Err, after.Refused, after.LastError, after.Log} {
		if len(text) > 8<<10 {
			h.t.Errorf("it has %d bytes to say: %.200q...", len(text), text)
		}
		if strings.ContainsFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) {
			h.t.Errorf("a terminal would obey %q", text)
		}
	}
	h.t.Logf("%d KiB of memory, %d of incoming artifacts; %.300s", max(after.Memory, 0)>>10, after.MostDisk>>10, after.Err)
}

// trouble is what a WFM answers in place of what it should, and what the device
// says about that; "" for what is put up with.
type trouble struct {
	name   string
	fault  fault.Fault
	answer string // about a manifest
	bytes  string // about documents; the same if empty
}

// accepted marks what is put up with.
const accepted = "-"

func troubles() []trouble {
	const (
		large  = "larger than its limit"
		digest = "does not match its digest"
		silent = "silent for too long"
		slow   = "takes too long"
	)
	header := func(name, value string) fault.Fault { return fault.Fault{Kind: fault.Header, Name: name, Value: value} }
	return []trouble{
		{"endless", fault.Fault{Kind: fault.Endless}, large, ""},
		{"larger than its limit", fault.Fault{Kind: fault.Endless, Bytes: 16 << 20}, large, ""},
		{"a bomb", fault.Fault{Kind: fault.Bomb, Bytes: 256 << 20}, large, digest},
		{"a little bomb", fault.Fault{Kind: fault.Bomb, Bytes: 100 << 10}, "not JSON", digest},
		{"slow", fault.Fault{Kind: fault.Slow, Bytes: 5}, slow, ""},
		{"late", fault.Fault{Kind: fault.Delay, Wait: time.Hour}, silent, ""},
		{"silent", fault.Fault{Kind: fault.Stall}, silent, ""},
		{"silent on the way", fault.Fault{Kind: fault.Stall, Bytes: 40}, silent, ""},
		{"too short a length", fault.Fault{Kind: fault.Length, Bytes: 10}, "not JSON", digest},
		{"too long a length", fault.Fault{Kind: fault.Length, Bytes: 64 << 10}, "unexpected EOF", accepted},
		{"an absurd length", fault.Fault{Kind: fault.Length, Bytes: 1 << 62}, "", ""},
		{"the page of a portal", fault.Fault{Kind: fault.HTML}, "not a state manifest", digest},
		{"the page of a portal as an error", fault.Fault{Kind: fault.HTML, Status: 511}, "511", ""},
		{"reset", fault.Fault{Kind: fault.Reset}, "reset", ""},
		{"reset on the way", fault.Fault{Kind: fault.Reset, Bytes: 40}, "reset", ""},
		{"cut", fault.Fault{Kind: fault.Cut}, "EOF", ""},
		{"cut on the way", fault.Fault{Kind: fault.Cut, Bytes: 40}, "unexpected EOF", accepted}, // it goes on from there
		{"truncated", fault.Fault{Kind: fault.Truncate, Bytes: 40}, "not JSON", digest},
		{"one bit", fault.Fault{Kind: fault.Corrupt, Bytes: 10}, "manifestVersion: is missing", digest},
		{"a redirect", fault.Fault{Kind: fault.Redirect, Value: "https://elsewhere.example/x?token=secret"}, "a redirect to", ""},
		{"a redirect for good", fault.Fault{Kind: fault.Redirect, Status: 308, Value: "file:///etc/passwd"}, "a redirect to", ""},
		{"no content", fault.Fault{Kind: fault.Answer, Status: 204}, "", digest},
		{"not modified", fault.Fault{Kind: fault.Answer, Status: 304}, "-unchanged", "304"},
		{"unauthorized", fault.Fault{Kind: fault.Answer, Status: 401}, "401", ""},
		{"not found", fault.Fault{Kind: fault.Answer, Status: 404}, "404", ""},
		{"a failure", fault.Fault{Kind: fault.Answer, Status: 500, RetryAfter: fault.NoRetryAfter}, "500", ""},
		{"an unknown encoding", header("Content-Encoding", "br"), `Content-Encoding "br"`, accepted},
		{"a chain of encodings", header("Content-Encoding", "gzip, gzip"), `Content-Encoding "gzip, gzip"`, accepted},
		{"an encoding that it has not", header("Content-Encoding", "gzip"), "encoding", accepted},
		{"an ETag of everything", header("ETag", "*"), accepted, ""},
		{"a long ETag", header("ETag", `"`+strings.Repeat("x", 32<<10)+`"`), accepted, ""},
		{"an ETag of odd bytes", header("ETag", "\"\x9b31m\xff\""), accepted, ""},
		{"a weak ETag", fault.Fault{Kind: fault.WeakETag}, accepted, ""},
		{"a cookie", header("Set-Cookie", "a=b; Path=/"), accepted, ""},
		{"a manifest of a signed kind", header("Content-Type", "application/jose+json"), "not a state manifest", accepted},
		{"the year 9999", header("Date", "Fri, 31 Dec 9999 23:59:59 GMT"), accepted, ""},
		{"the year 1970", header("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), accepted, ""},
		{"a date that is none", header("Date", "\x9b"), accepted, ""},
	}
}

// One table over all that a WFM can answer in place of what it should.
func TestDS18HostileAnswersChangeNothing(t *testing.T) {
	t.Parallel()
	for endpoint, names := range map[string][]string{
		"manifest":  {wfmsim.EndpointManifest},
		"documents": {wfmsim.EndpointBundle, wfmsim.EndpointDocument},
	} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			h := newHostile(t, brief)
			for _, trouble := range troubles() {
				want := trouble.answer
				if endpoint == "documents" {
					if want = trouble.bytes; want == "" {
						continue // as of a manifest: by the same code
					}
				}
				t.Run(trouble.name, func(t *testing.T) {
					h.t, h.device.t = t, t
					h.publish()
					for _, name := range names {
						f := trouble.fault
						f.Endpoint = name
						h.inject(f)
					}
					switch want {
					case accepted:
						before := h.device.do("rest")
						after := h.device.do("sync")
						if after.Err != "" {
							t.Errorf("it is refused: %s", after.Err)
						}
						h.bounded(before, after)
						if late := time.Until(after.Now); late < -time.Hour || late > time.Hour {
							t.Errorf("the device thinks that it is %s", after.Now)
						}
					case "-unchanged":
						h.unchanged(h.device.do("rest"), h.device.do("sync"))
					default:
						h.refuses(want)
					}
					h.wfm.Faults().Clear("")
					h.settles()
				})
			}
			h.t, h.device.t = t, t
			h.leavesNothing()
		})
	}
}

// leavesNothing looks for goroutines that were left behind.
func (h *hostile) leavesNothing() {
	h.t.Helper()
	h.device.connect(h.device.options.URL)
	h.device.eventually(fmt.Sprintf("there are %d goroutines, as before", h.goroutines), func(v *view) bool {
		return v.Goroutines <= h.goroutines+2
	})
}

// The twists of a manifest that are not refused, and why.
var tolerated = map[string]string{
	"version-exponent": "the value is an integer (A-23)",
	"version-decimal":  "the value is an integer (A-23)",
	"duplicate":        "the same said twice (DS-17)",
	"id-case":          "an id has no case (A-54)",
	"id-no-uuid":       "a safe name is as good",
	"bundle-trailing":  "the bundle has its digest, and an end before that",
	"bundle-odd-names": "names mean nothing (A-22)",
}

// All that can be wrong with a manifest, or with the bundle that it names rightly.
func TestDS16HostileManifestsChangeNothing(t *testing.T) {
	t.Parallel()
	h := newHostile(t, 20*time.Second)
	for _, twist := range wfmsim.Twists() {
		if twist == "version-max" || twist == "empty" {
			continue // a WFM may want no deployments (DS-15), and after the last version nothing can follow
		}
		t.Run(twist, func(t *testing.T) {
			h.t, h.device.t = t, t
			if twist != "version-lower" && twist != "version-same" { // than what is accepted
				h.publish()
			}
			h.inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Twist, What: twist, Bytes: twisted[twist]},
				// There is no other way to the documents.
				fault.Fault{Endpoint: wfmsim.EndpointDocument, Kind: fault.Answer, Status: http.StatusNotFound})
			if tolerated[twist] != "" {
				before := h.device.do("rest")
				after := h.device.do("sync")
				if after.Err != "" {
					t.Errorf("it is refused: %s", after.Err)
				}
				h.bounded(before, after)
				h.publish() // the version was given away
			} else if after := h.refuses(""); after.Refused == "" {
				t.Errorf("it is no refusal: %s", after.Err)
			}
			h.wfm.Faults().Clear("")
			h.settles()
		})
	}
	h.t, h.device.t = t, t
	h.leavesNothing()
}

// twisted are the sizes of twists: more than the limits, and quickly made.
var twisted = map[string]int64{"bundle-many": 5000, "bundle-bomb": 64 << 20}

// What is wrong with an identity service costs the device the refresh, and
// nothing else: the trust bundle that it has stays, and with it the WFM.
func TestID22HostileIdentityServicesChangeNothing(t *testing.T) {
	t.Parallel()
	h := &hostile{t: t, authority: must(pki.NewAuthority(hostileDomain, time.Now()))}
	h.serve()
	web := must(pki.NewServerAuthority("Web", time.Now()))
	service := must(mis.New(mis.Options{
		TrustDomain: hostileDomain, Bundle: h.authority.Bundle(), Certificate: must(web.IssueServer([]string{"127.0.0.1"})).TLS(),
		Flaws: web.Flaws(), Flawed: func(flaw string) (tls.Certificate, error) { return web.IssueFlawed([]string{"127.0.0.1"}, flaw) },
	}))
	if err := service.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Close() })
	o := hostileOptions(h.wfm.URL())
	o.CA = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(o.CA, web.RootPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	o.TrustBundle, o.Service.Discovery = service.BundleURL(), service.DiscoveryURL()
	h.device = newRemote(t, h.authority, o)
	h.publish()
	h.device.eventually("the trust bundle is there", func(*view) bool { return h.device.do("probe").Err == "" })
	h.settles()

	type case_ struct {
		name   string
		faults []fault.Fault
	}
	var cases []case_
	for _, twist := range mis.Twists() {
		for _, endpoint := range []string{mis.EndpointDiscovery, mis.EndpointBundle} {
			f := fault.Fault{Endpoint: endpoint, Kind: fault.Twist, What: twist, Value: "https://user:secret@127.0.0.1:1/\x1b[2J"}
			cases = append(cases, case_{"twist " + endpoint + " " + twist, []fault.Fault{f}})
		}
	}
	for _, flaw := range web.Flaws() {
		cases = append(cases, case_{"certificate " + flaw, []fault.Fault{{Endpoint: mis.EndpointHandshake, Kind: fault.Certificate, What: flaw}}})
	}
	for i, trouble := range troubles() { // both are fetched by the same code, which is also the manifest's
		if testing.Short() && i%4 > 1 {
			continue // in make test-all: all of them
		}
		f := trouble.fault
		f.Endpoint = []string{mis.EndpointDiscovery, mis.EndpointBundle}[i%2]
		cases = append(cases, case_{f.Endpoint + " " + trouble.name, []fault.Fault{f}})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.t, h.device.t = t, t
			for _, f := range c.faults {
				if _, err := service.Faults().Inject(f); err != nil {
					t.Fatal(err)
				}
			}
			before := h.device.do("rest")
			after := h.device.do("probe")
			h.unchanged(before, after)
			if strings.Contains(after.Err+after.Log, "secret") {
				t.Errorf("a secret is shown: %s %s", after.Err, after.Log)
			}
			if v := h.device.do("sync"); v.Err != "" {
				t.Errorf("the WFM is out of reach: %s", v.Err)
			}
			service.Faults().Clear("")
		})
	}
	h.t, h.device.t = t, t
	if v := h.device.do("probe"); v.Err != "" {
		t.Errorf("the service is not believed again: %s", v.Err)
	}
}
