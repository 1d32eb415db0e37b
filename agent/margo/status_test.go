package margo_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a document with the one kept in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		check(t, os.WriteFile(path, append(got, '\n'), 0o644))
	}
	want := expect.Value(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(bytes.TrimSpace(want)), string(got)); diff != "" {
		t.Errorf("differs from %s (-update writes it anew):\n%s", path, diff)
	}
}

func installed() margo.Status {
	return margo.Status{
		DeploymentID:   idA,
		DeviceID:       "plant-alfa-zone1-edge01",
		AdoptedVersion: math.MaxUint64,
		State:          margo.Installed,
		Components:     []margo.ComponentStatus{{Name: "database", State: margo.Installed}, {Name: "web", State: margo.Installed}},
	}
}

func failed() margo.Status {
	return margo.Status{
		DeploymentID:   idA,
		DeviceID:       "gateway/plant-alfa-zone1-edge01",
		AdoptedVersion: 7,
		State:          margo.Failed,
		Error:          &margo.Fault{Code: "ERR_IMAGE_PULL", Source: "digitron", Message: "component database could not be installed"},
		Components: []margo.ComponentStatus{
			{Name: "web", State: margo.Pending},
			{Name: "database", State: margo.Failed, Error: &margo.Fault{Code: "ERR_IMAGE_PULL", Source: "database", Message: "access <denied> & gone"}},
		},
	}
}

func TestStatusIsWrittenAsRC3WantsIt(t *testing.T) {
	unread := margo.Status{
		DeploymentID: idA, DeviceID: "edge", AdoptedVersion: 1, State: margo.Failed,
		Error: &margo.Fault{Code: "INVALID", Source: idA, Message: "the document could not be read"},
	}
	for name, s := range map[string]margo.Status{
		"status-installed.json": installed(),
		"status-failed.json":    failed(),
		"status-unread.json":    unread,
	} {
		t.Run(name, func(t *testing.T) {
			body := expect.Value(s.Marshal())(t)
			golden(t, name, body)
			back := expect.Value(margo.ParseStatus(body))(t)
			same(t, s, *back)
		})
	}
}

func TestStatusThatAStrictWFMWouldRefuseIsNotWritten(t *testing.T) {
	for name, row := range map[string]struct {
		change      func(*margo.Status)
		requirement string
	}{
		"no deployment":                          {func(s *margo.Status) { s.DeploymentID = "" }, "A-60"},
		"a deployment with a line break":         {func(s *margo.Status) { s.DeploymentID = "x\n" }, "A-60"},
		"a device with a space":                  {func(s *margo.Status) { s.DeviceID = "edge 01" }, "ST-06"},
		"ST-12 no adopted version":               {func(s *margo.Status) { s.AdoptedVersion = 0 }, "ST-12"},
		"ST-03 no state":                         {func(s *margo.Status) { s.State = "" }, "ST-03"},
		"ST-03 another state":                    {func(s *margo.Status) { s.State = "running" }, "ST-03"},
		"ST-04 a less severe overall state":      {func(s *margo.Status) { s.Components[0].State = margo.Removing }, "ST-04"},
		"ST-04 a more severe overall state":      {func(s *margo.Status) { s.State = margo.Installing }, "ST-04"},
		"ST-09 failed without error":             {func(s *margo.Status) { s.State = margo.Failed }, "ST-09"},
		"ST-09 a component failed without error": {func(s *margo.Status) { s.Components[0].State = margo.Failed }, "ST-09"},
		"ST-07 an error without source":          {func(s *margo.Status) { s.Error = &margo.Fault{Code: "c", Message: "m"} }, "ST-07"},
		"ST-07 an error without code":            {func(s *margo.Status) { s.Components[0].Error = &margo.Fault{Source: "c", Message: "m"} }, "ST-07"},
		"ST-07 an error of nothing but space":    {func(s *margo.Status) { s.Error = &margo.Fault{Code: "c", Source: "s", Message: " \n"} }, "ST-07"},
		"ST-05 a component without name":         {func(s *margo.Status) { s.Components[0].Name = "" }, "ST-05"},
		"ST-05 a component twice":                {func(s *margo.Status) { s.Components[0].Name = "web" }, "ST-05"},
		"ST-05 too many components": {func(s *margo.Status) {
			s.Components = make([]margo.ComponentStatus, margo.MaxComponents+1)
		}, "ST-05"},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed()
			row.change(&s)
			body, err := s.Marshal()
			if body != nil || !slices.Contains(requirements(err), row.requirement) {
				t.Errorf("got %s, %v, want it refused by %s", body, err, row.requirement)
			}
		})
	}
}

func TestMessagesOfFaultsLeaveTheDeviceAsOneShortLine(t *testing.T) {
	for name, row := range map[string]struct{ message, want string }{
		"several lines":       {"first\r\n\tsecond\x1b[31m  third\n", "first second [31m third"},
		"not UTF-8":           {"a\xffb", "a\uFFFDb"},
		"too long":            {strings.Repeat("ä", 2000), strings.Repeat("ä", 510) + "..."},
		"exactly long enough": {strings.Repeat("x", margo.MaxFaultMessage), strings.Repeat("x", margo.MaxFaultMessage)},
	} {
		t.Run(name, func(t *testing.T) {
			s := failed()
			s.Error.Message = row.message
			body := expect.Value(s.Marshal())(t)
			back := expect.Value(margo.ParseStatus(body))(t)
			if got := back.Error.Message; got != row.want || len(got) > margo.MaxFaultMessage || !utf8.ValidString(got) {
				t.Errorf("message is %q, want %q", got, row.want)
			}
			expect.Equal(t, s.Error.Message, row.message, "the caller's fault was changed")
		})
	}
}

// As many components as there may be, each with as much to say as there may be.
func TestTheLargestReportIsWithinItsBounds(t *testing.T) {
	quoted := strings.Repeat(`"`, 1<<20) // takes twice its length
	s := failed()
	s.Error.Message = quoted
	s.Components = nil
	for i := range margo.MaxComponents {
		name := fmt.Sprintf("%s-%02d", strings.Repeat("x", 197), i)
		s.Components = append(s.Components, margo.ComponentStatus{
			Name: name, State: margo.Failed, Error: &margo.Fault{Code: "CONTAINER_EXITED", Source: name, Message: quoted},
		})
	}
	body := expect.Value(s.Marshal())(t)
	expect.True(t, len(body) <= margo.MaxStatusBytes, "it has %d bytes", len(body))
	t.Logf("it has %d bytes", len(body))
}

func TestStatusIsReadStrictly(t *testing.T) {
	const head = `{"deploymentId":"` + idA + `","adoptedManifestVersion":7,`
	for name, row := range map[string]struct{ body, requirement string }{
		"not JSON":                       {`{`, ""},
		"ST-18 another kind":             {head + `"kind":"Deployment","status":{"state":"installed"},"components":[]}`, "ST-18"},
		"a list":                         {`[]`, "ST-01"},
		"a key twice":                    {head + `"status":{"state":"installed","state":"failed"},"components":[]}`, ""},
		"ST-12 a version in quotes":      {`{"deploymentId":"` + idA + `","adoptedManifestVersion":"7","status":{"state":"installed"},"components":[]}`, "ST-12"},
		"ST-03 no status":                {head + `"components":[]}`, "ST-03"},
		"ST-05 no components":            {head + `"status":{"state":"installed"}}`, "ST-05"},
		"ST-05 a component of a string":  {head + `"status":{"state":"installed"},"components":["web"]}`, "ST-05"},
		"ST-07 an error of a string":     {head + `"status":{"state":"failed","error":"x"},"components":[]}`, "ST-07"},
		"ST-07 an error with one member": {head + `"status":{"state":"installed","error":{"code":"x"}},"components":[]}`, "ST-07"},
		"ST-07 an error with a number":   {head + `"status":{"state":"installed","error":{"code":1}},"components":[]}`, "ST-07"},
	} {
		t.Run(name, func(t *testing.T) {
			cites(t, expect.ErrorOf(margo.ParseStatus([]byte(row.body))), row.requirement)
		})
	}
}

// While components are worked on one after the other, that is the state of the one being
// processed (ST-16).
func TestST04ST16OverallStateIsTheMostSevereOfTheComponents(t *testing.T) {
	order := []margo.State{margo.Failed, margo.Removing, margo.Installing, margo.Pending, margo.Removed, margo.Installed}
	for i, a := range order {
		for j, b := range order {
			got := margo.OverallState([]margo.ComponentStatus{{State: a}, {State: b}})
			expect.Equal(t, got, order[min(i, j)], "%s and %s give", a, b)
		}
	}
	expect.Equal(t, margo.OverallState(nil), margo.Installed, "no components give")
}

func FuzzParseStatus(f *testing.F) {
	for _, name := range []string{
		"valid/DeploymentStatusManifest-001.json",
		"valid/from-text/DeploymentStatusManifest-installed.json",
		"valid/from-text/DeploymentStatusManifest-pending.json",
	} {
		f.Add(document(f, name))
	}
	body := expect.Value(failed().Marshal())(f)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := margo.ParseStatus(body)
		if err != nil {
			return
		}
		again, err := s.Marshal()
		if err != nil {
			// A message may be nothing but what may not be shown.
			if slices.Contains(requirements(err), "ST-07") {
				return
			}
			t.Fatal(err)
		}
		expect.Value(margo.ParseStatus(again))(t)
	})
}
