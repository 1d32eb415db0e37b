package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

const (
	documentedSocket     = "/run/margolite/control.sock"
	documentedDeployment = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	documentedRevision   = "sha256:3b1e16fffc9d4ab3da1d4d1d0f2c4b5e57ba3ac1a1d4efcbc1d2f0a7c3e9b814"
	chainA               = "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
	chainB               = "sha256:5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"
)

// documented is the device that README.md tells of.
type documented struct{ *backend }

func newDocumented() documented {
	at := time.Date(2026, 5, 4, 6, 0, 0, 0, time.UTC)
	operator := control.Caller{UID: 1000, User: "operator"}.String()
	b := &backend{status: control.Status{Device: "edge-01", Deployments: []control.Deployment{}}, events: make(chan control.Event, 2)}
	for _, e := range []control.Event{
		{Time: at.Add(30 * time.Second), Kind: control.ChangeWaits, Text: "an update needs the approval of the site"},
		{Time: at.Add(72 * time.Second), Kind: control.ChangeApproved, Text: "by " + operator + ": update"},
	} {
		e.Deployment, e.Digest = documentedDeployment, documentedRevision
		b.events <- e
	}
	close(b.events)
	b.lock = control.Lock{Holder: "shift supervisor", Reason: "batch 4711", By: operator, Since: at, Until: at.Add(2 * time.Hour)}
	b.released = []control.Lock{b.lock}
	begun := control.Entry{
		Sequence: 42, Time: at.Add(72 * time.Second), Kind: "change.begun", Deployment: documentedDeployment,
		Revision: documentedRevision, Text: "update", Chain: chainB,
	}
	approved := begun
	approved.Sequence, approved.Kind, approved.By, approved.Chain = 41, "change.approved", operator, chainA
	b.entries = []control.Entry{approved, begun}
	b.verified = control.Verification{Entries: 42, First: 1, Head: chainB}
	return documented{b}
}

func (d documented) answer(r control.AnswerRequest) error {
	if r.Revision != documentedRevision {
		return fmt.Errorf("%w: the pending change of deployment %s is the update of revision %s", control.ErrConflict, documentedDeployment, documentedRevision)
	}
	return nil
}

func (d documented) Approve(_ context.Context, r control.AnswerRequest) error { return d.answer(r) }
func (d documented) Reject(_ context.Context, r control.AnswerRequest) error  { return d.answer(r) }

func (d documented) Release(context.Context, control.ReleaseRequest) ([]control.Lock, error) {
	released := d.released
	d.released = nil
	return released, nil
}

// example is a command of README.md and what it prints.
type example struct{ command, output string }

// examples are those of text: in its blocks of code, behind "$ ".
func examples(text string) []example {
	var found []example
	fenced, inside := false, false
	for line := range strings.Lines(text) {
		last := len(found) - 1
		switch command, is := strings.CutPrefix(line, "$ "); {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
			inside = fenced && line == "```\n"
		case inside && is:
			found = append(found, example{command: command})
		case inside && last >= 0 && strings.HasSuffix(found[last].command, "\\\n"):
			found[last].command += line
		case inside && last >= 0:
			found[last].output += line
		}
	}
	return found
}

// Every example of README.md does what it says, on a socket of a real server.
func TestExamplesOfTheDocumentationWork(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("curl is needed, see build/need: ", err)
	}
	text := expect.Value(os.ReadFile("README.md"))(t)
	_, path := serve(t, newDocumented())
	shown := map[string]bool{}
	for _, e := range examples(string(text)) {
		t.Run(strings.TrimSpace(e.command), func(t *testing.T) {
			command := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(e.command, documentedSocket, path))
			command.Env = append(os.Environ(), "HOME="+t.TempDir()) // without the settings of who tests
			var out, errs bytes.Buffer
			command.Stdout, command.Stderr = &out, &errs
			if err := command.Run(); err != nil || errs.Len() > 0 {
				t.Fatalf("%v: %s", err, errs.String())
			}
			if e.output == "" {
				e.output = out.String() // too long to be shown
			}
			if got := out.String(); got != e.output || got == "" || strings.Contains(got, `"error"`) != strings.Contains(got, "409") {
				t.Errorf("it printed\n%s\nwant\n%s", got, e.output)
			}
		})
		if route := regexp.MustCompile(`http://margolite(/v1/[a-z/]+)`).FindStringSubmatch(e.command); route != nil {
			shown[route[1]] = true
		}
	}
	for _, route := range []string{
		"/v1/status", "/v1/approve", "/v1/reject", "/v1/hold", "/v1/release", "/v1/rollback", "/v1/history", "/v1/history/verify", "/v1/events",
	} {
		expect.True(t, shown[route], "there is no example of %s", route)
	}
}

// The example of a change has the members that there are, and all of the names
// that the tables give are names of members.
func TestTheDocumentedChangeIsOne(t *testing.T) {
	text := expect.Value(os.ReadFile("README.md"))(t)
	_, rest, _ := strings.Cut(string(text), "```json\n")
	block, _, ok := strings.Cut(rest, "```")
	expect.Require(t, ok, "there is no example of a change")
	dec := json.NewDecoder(strings.NewReader(block))
	dec.DisallowUnknownFields()
	var change control.Pending
	check(t, dec.Decode(&change))
	if change.Revision != documentedRevision || len(change.Reasons) != 2 || len(change.Services) != 1 || change.Services[0].Image == nil || len(change.Parameters) != 1 {
		t.Errorf("the example is %+v", change)
	}
}
