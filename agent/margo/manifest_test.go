package margo_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

const (
	idA     = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	idB     = "ad9b614e-8912-45f4-a523-372358765def"
	digestA = "sha256:671a64813ec0c4b7b76b034e7be67c13b03bba63458d012e42e4e745b6c14f52"
	digestB = "sha256:671b64813ec0c4b7b76b034e7be67c13b03bba63458d012e42e4e745b6c14f52"
)

// manifestWith is a manifest of no deployments with the given version literal.
func manifestWith(version string) string {
	return `{"manifestVersion":` + version + `,"bundle":null,"deployments":[]}`
}

// manifestOf is a manifest with the given entries.
func manifestOf(entries ...string) string {
	return `{"manifestVersion":1,"bundle":{"mediaType":"` + margo.BundleMediaType + `","digest":"` + digestA +
		`","url":"/b"},"deployments":[` + strings.Join(entries, ",") + `]}`
}

func entry(id, digest, rest string) string {
	return fmt.Sprintf(`{"deploymentId":%q,"digest":%q,"url":"/d"%s}`, id, digest, rest)
}

func TestManifestVersionIsReadFromItsLiteralWithoutAFloat(t *testing.T) {
	for literal, want := range map[string]uint64{
		"1":                       1,
		"9007199254740993":        9007199254740993, // 2^53+1, which a float64 cannot tell from 2^53
		"18446744073709551615":    math.MaxUint64,
		"1e2":                     100,
		"1844674407370955161.5e1": math.MaxUint64,
	} {
		t.Run(literal, func(t *testing.T) {
			m := expect.Value(margo.ParseStateManifest([]byte(manifestWith(literal))))(t)
			expect.Equal(t, m.Version, want, "version")
		})
	}
}

func TestManifestVersionThatIsNoPositive64BitIntegerIsRefused(t *testing.T) {
	for _, literal := range []string{
		"0", "0e5", "0.0", "-1", "-0", "1.5", "1e-1", "15e-1", "18446744073709551616", "1e20", "1e999999999", "1e99999999999",
		"18446744073709551615.5", `"1"`, "true", "null", "[]",
	} {
		t.Run(literal, func(t *testing.T) {
			_, err := margo.ParseStateManifest([]byte(manifestWith(literal)))
			cites(t, err, "A-23")
		})
	}
}

func TestManifestKeepsWhatTheDocumentSays(t *testing.T) {
	got := expect.Value(margo.ParseStateManifest(document(t, "valid/constructed/DesiredStateManifest-rc3-two-deployments.json")))(t)
	const bundle = "sha256:2431fc77ba371a21e1798ef7c1e4679ce4409d4c640e890e2ed49442c8f91923"
	a := digest.FromBytes(document(t, "valid/DesiredState-001.yaml"))
	b := digest.FromBytes(document(t, "valid/DesiredState-002.yaml"))
	want := &margo.StateManifest{
		Version: 101,
		Bundle:  &margo.Bundle{MediaType: margo.BundleMediaType, Digest: bundle, SizeBytes: 1101, URL: "/api/v1/bundles/" + bundle},
		Deployments: []margo.DeploymentRef{
			{ID: idA, Digest: a, SizeBytes: 3848, URL: "/api/v1/deployments/" + idA + "/" + a.String()},
			{ID: idB, Digest: b, SizeBytes: 2094, URL: "/api/v1/deployments/" + idB + "/" + b.String()},
		},
	}
	same(t, want, got)
}

func TestManifestIsReadTolerantlyWhereTheSpecificationAsksForIt(t *testing.T) {
	for name, body := range map[string]string{
		"sizeBytes of any form is advisory":            manifestOf(entry(idA, digestA, `,"sizeBytes":"many"`), entry(idB, digestA, `,"sizeBytes":-1.5`)),
		"sizeBytes beyond 64 bits is advisory":         manifestOf(entry(idA, digestA, `,"sizeBytes":1e30`)),
		"unknown members are ignored":                  `{"signature":{"a":[1,{"b":null}]},"manifestVersion":1,"bundle":null,"deployments":[]}`,
		"an id may be written in upper case":           manifestOf(entry(strings.ToUpper(idA), digestA, "")),
		"two deployments may share a document's bytes": manifestOf(entry(idA, digestA, ""), entry(idB, digestA, "")),
	} {
		t.Run(name, func(t *testing.T) {
			expect.OK(t, expect.ErrorOf(margo.ParseStateManifest([]byte(body))))
		})
	}
}

func TestManifestIsAcceptedWithAWarningWhereNothingIsInDoubt(t *testing.T) {
	for name, row := range map[string]struct{ body, requirement string }{
		"an entry twice in different case": {manifestOf(entry(idA, digestA, ""), entry(strings.ToUpper(idA), digestA, "")), "DS-17"},
		"a URL that is missing":            {manifestOf(strings.Replace(entry(idA, digestA, ""), "url", "uri", 1)), "A-60"},
		"a URL that is null":               {manifestOf(strings.Replace(entry(idA, digestA, ""), `"/d"`, "null", 1)), "A-60"},
		"a URL that is empty":              {manifestOf(strings.Replace(entry(idA, digestA, ""), `"/d"`, `""`, 1)), "A-60"},
	} {
		t.Run(name, func(t *testing.T) {
			m := expect.Value(margo.ParseStateManifest([]byte(row.body)))(t)
			if len(m.Deployments) != 1 || !slices.Contains(requirements(m.Warnings), row.requirement) {
				t.Errorf("%d deployments with warnings %v, want one and %s", len(m.Deployments), m.Warnings, row.requirement)
			}
		})
	}
}

func TestManifestOutOfOrderIsRefusedAsAWhole(t *testing.T) {
	long := strings.Repeat("x", 2049)
	var many []string
	for i := range margo.MaxDeployments + 1 {
		many = append(many, entry(fmt.Sprintf("00000000-0000-0000-0000-%012d", i), digestA, ""))
	}
	for name, row := range map[string]struct{ body, requirement string }{
		"not JSON":                           {`{"manifestVersion":1,`, ""},
		"something behind the document":      {manifestWith("1") + "{}", ""},
		"not UTF-8":                          {"{\"manifestVersion\":1,\"bundle\":null,\"deployments\":[],\"x\":\"\xff\"}", ""},
		"a list":                             {`[]`, "DS-03"},
		"a key twice":                        {`{"manifestVersion":2,"manifestVersion":1,"bundle":null,"deployments":[]}`, ""},
		"a key twice, escaped":               {`{"manifestVersion":2,"manifest\u0056ersion":1,"bundle":null,"deployments":[]}`, ""},
		"a key twice in what is ignored":     {`{"x":{"a":1,"a":2},"manifestVersion":1,"bundle":null,"deployments":[]}`, ""},
		"a key in another case":              {`{"ManifestVersion":1,"bundle":null,"deployments":[]}`, "A-23"},
		"nested too deep":                    {`{"x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `,"manifestVersion":1,"bundle":null,"deployments":[]}`, ""},
		"too many values":                    {`{"x":[0` + strings.Repeat(",0", 8*margo.MaxDeployments) + `],"manifestVersion":1,"bundle":null,"deployments":[]}`, ""},
		"too many bytes":                     {manifestWith("1") + strings.Repeat(" ", margo.MaxManifestBytes), ""},
		"too many deployments":               {manifestOf(many...), ""},
		"no deployments key":                 {`{"manifestVersion":1,"bundle":null}`, "DS-15"},
		"deployments null":                   {`{"manifestVersion":1,"bundle":null,"deployments":null}`, "DS-15"},
		"DS-15 a bundle without deployments": {manifestOf(), "DS-15"},
		"a bundle that is no object":         {`{"manifestVersion":1,"bundle":"x","deployments":[` + entry(idA, digestA, "") + `]}`, "A-08"},
		"an id that is a number":             {manifestOf(strings.Replace(entry("1", digestA, ""), `"1"`, "1", 1)), "A-60"},
		"DS-17 an id with two digests":       {manifestOf(entry(idA, digestA, ""), entry(strings.ToUpper(idA), strings.Replace(digestA, "671a", "671b", 1), "")), "DS-17"},
		"a URL that is too long":             {manifestOf(strings.Replace(entry(idA, digestA, ""), "/d", "/"+long, 1)), "A-60"},
		"a URL with a line break":            {manifestOf(strings.Replace(entry(idA, digestA, ""), "/d", `/\n`, 1)), "A-60"},
		"a URL that is a number":             {manifestOf(strings.Replace(entry(idA, digestA, ""), `"/d"`, "7", 1)), "A-60"},
		"an entry that is no object":         {manifestOf("null"), "DS-17"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := margo.ParseStateManifest([]byte(row.body))
			cites(t, err, row.requirement)
		})
	}
}

func TestAnIDThatIsNoUUIDConcernsItsDeploymentAlone(t *testing.T) {
	m := expect.Value(margo.ParseStateManifest([]byte(manifestOf(
		entry(idA, digestA, ""), entry("self-test-app", digestB, ""), entry("../mi008", digestB, ""), entry("-x", digestB, ""),
	))))(t)
	ids := func(m *margo.StateManifest) (run, refused []string) {
		for _, d := range m.Deployments {
			run = append(run, d.ID)
		}
		for _, d := range m.Refused {
			refused = append(refused, d.ID)
		}
		return run, refused
	}
	run, refused := ids(m)
	if !slices.Equal(run, []string{idA, "self-test-app"}) || !slices.Equal(refused, []string{"../mi008", "-x"}) {
		t.Errorf("runs %q and refuses %q", run, refused)
	}
	expect.Contains(t, m.Warnings.Error(), `"self-test-app"`, "warns of %v", m.Warnings)
	m.RefuseOddIDs()
	if run, refused = ids(m); !slices.Equal(run, []string{idA}) || len(refused) != 3 || len(m.All()) != 4 {
		t.Errorf("a strict device runs %q and refuses %q of %d", run, refused, len(m.All()))
	}
}

func TestManifestErrorTellsPlaceAndRule(t *testing.T) {
	_, err := margo.ParseStateManifest([]byte(manifestOf(entry(idA, "sha256:00", ""), entry(idB, "md5:00", ""))))
	want := `cannot accept state manifest: /deployments/0/digest: must be sha256: and 64 lowercase hex digits, is "sha256:00" [DS-23]; ` +
		`/deployments/1/digest: must use the algorithm sha256, uses "md5" [DS-11]`
	expect.True(t, err != nil && err.Error() == want, "got  %v\nwant %s", err, want)
}

func TestManifestSaysOnlySoMuchAboutADocumentFullOfErrors(t *testing.T) {
	var entries []string
	for range 1000 {
		entries = append(entries, entry("x", "y", ""))
	}
	_, err := margo.ParseStateManifest([]byte(manifestOf(entries...)))
	if n := len(requirements(err)); n == 0 || n > 16 {
		t.Errorf("%d violations, want 1 to 16", n)
	}
}

func FuzzParseStateManifest(f *testing.F) {
	for _, name := range []string{
		"valid/DesiredStateManifest-001.json",
		"valid/constructed/DesiredStateManifest-rc3-two-deployments.json",
		"valid/constructed/DesiredStateManifest-max-version.json",
		"invalid/constructed/DesiredStateManifest-duplicate-id.json",
	} {
		f.Add(document(f, name))
	}
	f.Add([]byte(manifestWith("1844674407370955161.5e1")))
	f.Add([]byte(manifestOf(strings.Replace(entry(idA, digestA, ""), "/d", "/d?a=1&b=<2>", 1))))
	f.Add([]byte(manifestOf(entry("no id", digestA, ""), entry(idB, digestA, ""))))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := margo.ParseStateManifest(body)
		if err != nil {
			return
		}
		expect.Require(t, m.Version != 0 && (m.Bundle == nil) == (len(m.Deployments)+len(m.Refused) == 0), "accepted %+v", m)
		if len(m.Refused) > 0 { // what is refused is not written again
			return
		}
		again := expect.Value(json.Marshal(m))(t)
		back := expect.Value(margo.ParseStateManifest(again))(t)
		if diff := cmp.Diff(m, back); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDS11ADigestOfAnotherAlgorithmRefusesTheManifest(t *testing.T) {
	for _, algorithm := range []string{"sha512", "sha384", "md5", "SHA256", "blake3"} {
		body := manifestOf(entry(idA, digestA, ""), entry(idB, strings.Replace(digestA, "sha256", algorithm, 1), ""))
		cites(t, expect.ErrorOf(margo.ParseStateManifest([]byte(body))), "DS-11")
	}
}

func TestDS23OnlyDigestsOfOneFormAreAccepted(t *testing.T) {
	for _, d := range []string{"", digestA + "0", digestA[:70], strings.ToUpper(digestA), "sha256:" + strings.ToUpper(digestA[7:]), " " + digestA, digestA + " ", digestA + "\n", "sha256:" + strings.Repeat("g", 64)} {
		body := manifestOf(entry(idA, d, ""))
		expect.True(t, expect.ErrorOf(margo.ParseStateManifest([]byte(body))) != nil, "%q is accepted", d)
	}
}
