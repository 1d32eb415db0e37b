package margo_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/openapi"
)

func TestRevisionsGoByTheirNames(t *testing.T) {
	var got margo.Revision
	for _, r := range margo.Revisions() {
		if err := got.UnmarshalText([]byte(r.String())); got != r || err != nil {
			t.Errorf("%s is read as %s, %v", r, got, err)
		}
	}
	for _, s := range []string{"", "1.0.0", "rc.3", "1.0.0-rc.4"} {
		expect.True(t, got.UnmarshalText([]byte(s)) != nil, "%q is read", s)
	}
	expect.True(t, !margo.RC3.Signed() && margo.RC2.Signed() && margo.RC1.Signed(), "requests are signed before rc.3 only")
}

func TestST18StatusBeforeRC3SaysWhatItIs(t *testing.T) {
	for name, s := range map[string]margo.Status{"status-installed": installed(), "status-failed": failed()} {
		for _, revision := range []margo.Revision{margo.RC3, margo.RC2} {
			body := expect.Value(s.MarshalFor(revision, false))(t)
			openapi.Read(t, revision.String(), "DeploymentStatusManifest").Expect(t, body)
			if revision == margo.RC2 {
				golden(t, name+"-rc2.json", body)
			}
		}
		body := expect.Value(s.MarshalFor(margo.RC1, false))(t)
		golden(t, name+"-rc1.json", body)
		// The interface of rc.1 was not kept; its status is that of rc.2 without
		// the members that came with it.
		openapi.Read(t, margo.RC2.String(), "DeploymentStatusManifest").Expect(t, body)
		expect.True(t, s.Error == nil || s.Error.Source != "", "the report itself was changed")
	}
	wrong := failed()
	wrong.State = margo.Installed
	for _, revision := range []margo.Revision{margo.RC2, margo.RC1} {
		cites(t, expect.ErrorOf(wrong.MarshalFor(revision, false)), "ST-04")
	}
}

// devices are one that hosts workloads, one that does not, and one with a custom runtime,
// labels and an extension.
func devices(t *testing.T) map[string]margo.Capabilities {
	t.Helper()
	relay, mixed := hosting(), hosting()
	relay.Properties.Hosting = nil
	mixed.Labels = map[string]any{"example.com/line": "7"}
	h := mixed.Properties.Hosting
	h.CPUs = []margo.CPU{{Cores: 2, Architecture: "arm"}, {Cores: 4.5, Architecture: "arm64"}}
	h.Runtimes = []string{"custom", "oci"}
	h.DeploymentTypes = []margo.DeploymentType{margo.Compose, margo.Custom}
	mixed.Extensions = map[string]json.RawMessage{"x-acme-extensions": json.RawMessage(`{"a":1}`)}
	return map[string]margo.Capabilities{"hosting": hosting(), "relay": relay, "mixed": mixed}
}

// In rc.2 the body is what each of the three forms in use wants.
func TestCAP13CapabilitiesBeforeRC3SayWhatTheyAre(t *testing.T) {
	for name, c := range devices(t) {
		for _, revision := range []margo.Revision{margo.RC3, margo.RC2} {
			body := expect.Value(c.MarshalFor(revision))(t)
			openapi.Read(t, revision.String(), "DeviceCapabilitiesManifest").Expect(t, body)
			if revision == margo.RC2 {
				golden(t, "capabilities-"+name+"-rc2.json", body)
				openapi.Read(t, "1.0.0-rc.2-cpu", "DeviceCapabilitiesManifest").Expect(t, body)
				if name != "relay" { // the schema has no role for it
					openapi.Read(t, "1.0.0-rc.2-roles", "DeviceCapabilitiesManifest").Expect(t, body)
				}
			}
		}
	}
	custom := devices(t)["mixed"]
	custom.Properties.Hosting.Runtimes = []string{"custom"}
	for _, revision := range []margo.Revision{margo.RC2, margo.RC1} {
		cites(t, expect.ErrorOf(custom.MarshalFor(revision)), "CAP-14")
		cites(t, expect.ErrorOf((margo.Capabilities{}).MarshalFor(revision)), "CAP-02")
	}
}

// The published example of rc.1 tells the form.
func TestCAP15CapabilitiesOfRC1HaveTheOlderForm(t *testing.T) {
	for name, c := range devices(t) {
		body := expect.Value(c.MarshalFor(margo.RC1))(t)
		golden(t, "capabilities-"+name+"-rc1.json", body)
		if name != "hosting" {
			continue
		}
		ours := paths(t, body)
		delete(ours, "/properties/resources/peripherals/model") // the published example has none
		same(t, paths(t, document(t, "valid/DeviceCapabilitiesManifest-001.json")), ours)
	}
}

// paths are the members of a document, without the places in lists.
func paths(t *testing.T, body []byte) map[string]bool {
	t.Helper()
	var root any
	check(t, json.Unmarshal(body, &root))
	found := make(map[string]bool)
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for name, member := range v {
				found[path+"/"+name] = true
				walk(path+"/"+name, member)
			}
		case []any:
			for _, item := range v {
				walk(path, item)
			}
		}
	}
	walk("", root)
	return found
}

func TestOnboardingRequestHasThePublishedMembers(t *testing.T) {
	body := expect.Value(margo.OnboardingRequest([]byte("certificate"), false))(t)
	same(t, paths(t, document(t, "valid/from-text/OnboardingRequest.json")), paths(t, body))
	if !bytes.Contains(body, []byte(`"`+base64.StdEncoding.EncodeToString([]byte("certificate"))+`"`)) {
		t.Errorf("%s does not hold the certificate in base64", body)
	}
}

func TestAUTH05ClientIDIsOneThatFitsIntoAPath(t *testing.T) {
	for id, fits := range map[string]bool{
		"1234": true, "A-z_0.9~": true, strings.Repeat("x", 128): true,
		"": false, "..": false, "../../../etc": false, "a%2Fb": false, "%2e%2e": false, "a b": false, "a?b=c": false,
		"\x1b[2J": false, strings.Repeat("x", 129): false,
	} {
		if err := margo.CheckClientID(id); (err == nil) != fits {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func FuzzParseOnboarding(f *testing.F) {
	for _, seed := range []string{
		`{"clientId":"7f1c6b1e-0f53-4a2e-9d55-6d7e0c1f2a3b"}`, `{"client_id":"a"}`, `{"clientId":null,"client_id":"a"}`,
		`{"clientId":".."}`, `{"clientId":"\u002e"}`, `{"clientId":"a/../b"}`, `{"clientId":7}`, `{"clientId":"1","clientId":"2"}`, `{"certificate":"LS0tLS1CRUdJTg=="}`, `[]`, `{`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		id, err := margo.ParseOnboarding(body)
		switch {
		case err != nil && id != "":
			t.Fatalf("a client id together with an error: %q", id)
		case err == nil && (id == "" || len(id) > 128 || strings.Trim(id, ".") == "" || strings.ContainsFunc(id, func(c rune) bool {
			return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-", c)
		})):
			t.Fatalf("client id %q", id)
		}
		if _, err := margo.ParseRootCertificate(body); err != nil && len(err.Error()) > 4096 {
			t.Fatal("an error without end")
		}
	})
}
