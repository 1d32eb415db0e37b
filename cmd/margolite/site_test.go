package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// site is the part of a fakeAgent that answers for the site.
type site struct {
	told     []string // what it was asked, as one line each
	siteErr  error
	onAnswer func() // what happened before an answer arrived
	lock     control.Lock
	released []control.Lock
	entries  []control.Entry
	verified control.Verification
	records  *store.Store
}

func (a *fakeAgent) tell(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, strings.TrimSpace(fmt.Sprintf(format, args...)))
	if a.onAnswer != nil {
		a.onAnswer()
	}
	return a.siteErr
}

func (a *fakeAgent) said() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.told)
}

func (a *fakeAgent) Approve(_ context.Context, r control.AnswerRequest) error {
	return a.tell("approve %s %s %s", r.Deployment, r.Revision, r.Reason)
}

func (a *fakeAgent) Reject(_ context.Context, r control.AnswerRequest) error {
	return a.tell("reject %s %s %s", r.Deployment, r.Revision, r.Reason)
}

func (a *fakeAgent) Hold(_ context.Context, r control.HoldRequest) (control.Lock, error) {
	return a.lock, a.tell("hold as %q for %ds on %q: %s", r.Holder, r.Seconds, r.Deployment, r.Reason)
}

func (a *fakeAgent) Release(_ context.Context, r control.ReleaseRequest) ([]control.Lock, error) {
	return a.released, a.tell("release as %q all %v", r.Holder, r.All)
}

func (a *fakeAgent) Rollback(_ context.Context, r control.ReturnRequest) error {
	return a.tell("rollback %s %s %s", r.Deployment, r.Revision, r.Reason)
}

func (a *fakeAgent) History(_ context.Context, r control.HistoryRequest) ([]control.Entry, error) {
	return a.entries, a.tell("history last %d of %q", r.Last, r.Deployment)
}

func (a *fakeAgent) Backup(context.Context) (*os.File, error) { return a.records.Copy(0) }

func (a *fakeAgent) VerifyHistory(context.Context) (control.Verification, error) {
	return a.verified, a.tell("verify")
}

var (
	revisionA = "sha256:" + strings.Repeat("a", 64)
	revisionB = "sha256:" + strings.Repeat("b", 64)
	revisionC = "sha256:" + strings.Repeat("c", 64)
)

// waiting is an agent with an update that waits for an approval, an installation
// that does, too, and an update that waits for its window alone.
func waiting() *fakeAgent {
	approval := []control.Reason{{Code: "approval", Text: "the site has to approve it"}}
	return &fakeAgent{status: control.Status{Deployments: []control.Deployment{
		{ID: "aa-11", Name: "mixer", Digest: revisionB, Active: revisionA, Former: revisionC, Change: &control.Pending{Kind: "update", Revision: revisionB, Reasons: approval}},
		{ID: "ab-22", Name: "label printer", Digest: revisionC, Change: &control.Pending{Kind: "install", Revision: revisionC, Reasons: approval}},
		{ID: "cc-33", Digest: revisionC, Active: revisionA, Change: &control.Pending{Kind: "update", Revision: revisionC, Answer: "approved", Reasons: []control.Reason{{Code: "window", Text: "the next opens at 22:00"}}}},
		{ID: "dd-44", Digest: revisionA, Active: revisionA},
	}}}
}

// What is shown of each change that an agent of waiting has, before it is answered.
var (
	shownB = "update of aa-11 (mixer) to revision " + revisionB + "\n  waits for approval: the site has to approve it\n"
	shownC = "installation of ab-22 (label printer), revision " + revisionC + "\n  waits for approval: the site has to approve it\n"
	shownD = "update of cc-33 to revision " + revisionC + "\n  waits for window: the next opens at 22:00\n"
)

// shownLine is the first line of what is shown.
func shownLine(shown string) string {
	line, _, _ := strings.Cut(shown, "\n")
	return line + "\n"
}

func TestAnApprovalNamesTheRevisionThatWaits(t *testing.T) {
	for _, c := range []struct {
		args []string
		told string
		out  string
	}{
		{[]string{"approve", "mixer"}, "approve aa-11 " + revisionB, shownB + "approved: " + shownLine(shownB)},
		{[]string{"approve", "AA"}, "approve aa-11 " + revisionB, shownB + "approved: " + shownLine(shownB)},
		{[]string{"approve", "ab-22", revisionC}, "approve ab-22 " + revisionC, shownC + "approved: " + shownLine(shownC)},
		{[]string{"approve", "ab", "cccccccc"}, "approve ab-22 " + revisionC, shownC + "approved: " + shownLine(shownC)},
		{[]string{"approve", "ab", "sha256:cccccccccccc", "--yes"}, "approve ab-22 " + revisionC, shownC + "approved: " + shownLine(shownC)},
		{[]string{"reject", "mixer", "--reason", "line 2 runs"}, "reject aa-11 " + revisionB + " line 2 runs", shownB + "rejected: " + shownLine(shownB)},
		{[]string{"reject", "cc-33"}, "reject cc-33 " + revisionC, shownD + "rejected: " + shownLine(shownD)},
		{[]string{"approve", "cc-33"}, "", "approved already: update of cc-33 to revision " + revisionC + "\n  waits for window: the next opens at 22:00\n"},
	} {
		a := waiting()
		got := call(t, append(c.args, "--config", serve(t, a))...)
		if got != (answer{command.Done, c.out, ""}) || strings.Join(a.told, ";") != c.told {
			t.Errorf("margolite %q: %+v, the agent was asked %q", c.args, got, a.told)
		}
	}
}

func TestWhatCannotBeAnsweredIsTold(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"approve", "dd"}, "no change of deployment dd-44 is pending\nfix: "},
		{[]string{"approve", "a"}, `deployment "a" is ambiguous: aa-11 (mixer), ab-22 (label printer)` + "\nfix: use more of its id"},
		{[]string{"reject", "pump"}, `unknown deployment "pump"; known: aa-11 (mixer), ab-22`},
		{[]string{"approve", "mixer", revisionA}, "nothing was approved: another revision is pending now: " + revisionB + "\nfix: look at the new revision"},
		{[]string{"reject", "mixer", "aaaaaaaa"}, "nothing was rejected: another revision is pending now: " + revisionB},
		{[]string{"rollback", "ab-22", "--yes"}, "no previous revision is kept\nfix: publish the previous revision"},
	} {
		a := waiting()
		got := call(t, append(c.args, "--config", serve(t, a))...)
		if got.code != command.Failed || got.out != "" || !strings.Contains(got.err, c.want) || len(a.told) != 0 {
			t.Errorf("margolite %q: %+v, the agent was asked %q", c.args, got, a.told)
		}
	}
	expect.Contains(t, call(t, "approve", "d", "--config", serve(t, &fakeAgent{})).err, "there are none", "without deployments")
}

// A revision that comes between the look and the answer is not answered.
func TestANewerRevisionNeedsAnAnswerOfItsOwn(t *testing.T) {
	a := waiting()
	a.siteErr = fmt.Errorf("%w: revision %s is superseded", control.ErrConflict, revisionB)
	a.onAnswer = func() { a.status.Deployments[0].Change.Revision = revisionC }
	call(t, "approve", "mixer", "--config", serve(t, a)).
		ends(t, command.Failed, shownB, "nothing was approved: another revision is pending now: "+revisionC+"\nfix: look at the new revision")
	expect.Equal(t, a.told, []string{"approve aa-11 " + revisionB}, "the agent was asked")
	a = waiting()
	a.siteErr = errors.New("the disk is full")
	call(t, "approve", "mixer", "--config", serve(t, a)).fails(t, "cannot approve the update of aa-11 (mixer) to revision "+revisionB+": the disk is full\n")
}

func TestAllThatWaitIsApproved(t *testing.T) {
	a := waiting()
	want := shownB + "approved: " + shownLine(shownB) + shownC + "approved: " + shownLine(shownC)
	expect.Equal(t, call(t, "approve", "--all", "--config", serve(t, a)), answer{command.Done, want, ""}, "all")
	expect.Equal(t, a.told, []string{"approve aa-11 " + revisionB, "approve ab-22 " + revisionC}, "the agent was asked")
	a = waiting()
	a.siteErr = errors.New("the disk is full")
	expect.Equal(t, strings.Count(call(t, "approve", "--all", "--config", serve(t, a)).err, "the disk is full"), 2, "failures")
	expect.Equal(t, call(t, "approve", "--all", "--config", serve(t, &fakeAgent{})), answer{command.Done, "No change is waiting for approval.\n", ""}, "nothing")
}

// Without a terminal, with and without --yes, what is approved is shown, and only
// what could be shown is approved.
func TestWhatIsApprovedWithoutATerminalIsShown(t *testing.T) {
	for _, args := range [][]string{{"mixer"}, {"mixer", "--yes"}, {"--all"}, {"--all", "--yes"}, {"mixer", revisionB}} {
		a := waiting()
		a.status.Deployments[0].Change.Services = []control.ServiceChange{{Component: "mixer", Service: "web", Change: "changed", Ports: &control.ListChange{Added: []string{"8090:80"}}}}
		file := serve(t, a)
		got := call(t, slices.Concat([]string{"approve"}, args, []string{"--config", file})...)
		shown, _, _ := strings.Cut(got.out, "approved: ")
		if got.code != command.Done || !strings.HasPrefix(shown, shownB) || !strings.Contains(shown, "web  + port 8090:80") {
			t.Errorf("margolite approve %q: %+v", args, got)
		}
		told := len(a.told)
		var err bytes.Buffer
		c := &cli{in: strings.NewReader(""), out: fullDevice{}, err: &err}
		if code := c.main(t.Context(), slices.Concat([]string{"approve"}, args, []string{"--config", file})); code != command.Failed || len(a.told) != told {
			t.Errorf("margolite approve %q without a place to show it: %d, the agent was asked %q", args, code, a.told[told:])
		}
	}
}

// fullDevice takes nothing.
type fullDevice struct{}

func (fullDevice) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What is shown on a terminal is done after a yes, and otherwise not.
func TestAYesIsAskedForOnATerminal(t *testing.T) {
	for _, c := range []struct {
		agent    func() *fakeAgent
		args     []string
		question string
		told     string
	}{
		{waiting, []string{"approve", "mixer"}, "Approve this?", "approve aa-11 " + revisionB},
		{waiting, []string{"rollback", "mixer"}, "Return to it until the WFM publishes another revision?", "rollback aa-11 " + revisionC},
		{served, []string{"accept-rollback"}, "Accept the served manifest in place of the held one?", "accept version 3 sha256:served"},
	} {
		for typed, want := range map[string][]string{"y": {c.told}, "n": nil, "": nil} {
			t.Run(c.args[0]+" "+typed, func(t *testing.T) {
				a := c.agent()
				p := onTerminal(t, control.Size{Columns: 200, Rows: 24}, append(c.args, "--config", serve(t, a))...)
				p.await(c.question + " [y/N]")
				p.typed(typed + "\n")
				expect.Equal(t, p.ended() == command.Done, want != nil, "it ended well")
				expect.Equal(t, a.said(), want, "the agent was asked")
			})
		}
	}
}

func TestLocksAreHeldAndReleased(t *testing.T) {
	until := time.Now().Add(2*time.Hour + 10*time.Second).UTC()
	day := until.Local().Format(time.DateTime)
	mine := control.Lock{Holder: "shift", Reason: "batch 7", Until: until}
	others := control.Lock{Holder: "mixer", Deployment: "aa-11", File: "/run/margolite/locks/aa-11/batch"}
	a := waiting()
	a.lock, a.released = mine, []control.Lock{mine}
	a.status.Locks = []control.Lock{others}
	file := serve(t, a)
	for _, c := range []struct {
		args      []string
		told, out string
	}{
		{[]string{"hold"}, `hold as "" for 0s on "":`, "held by shift for all deployments until " + day + " (in 2h0m"},
		{[]string{"hold", "--for", "90m", "--reason", "batch 7", "--as", "shift", "--deployment", "mixer"}, `hold as "shift" for 5400s on "mixer": batch 7`, "(in 2h0m): batch 7\n"},
		{[]string{"hold", "--for", "1500ms"}, `hold as "" for 2s on "":`, "held by shift"},
		{
			[]string{"release"},
			`release as "" all false`,
			"released the lock held by shift for all deployments until " + day,
		},
		{[]string{"release", "--as", "shift"}, `release as "shift" all false`, "still held by mixer for deployment aa-11 by lock file /run/margolite/locks/aa-11/batch\n"},
		{[]string{"release", "--all"}, `release as "" all true`, "released the lock"},
	} {
		a.told = nil
		got := call(t, append(c.args, "--config", file)...)
		if got.code != command.Done || got.err != "" || !strings.Contains(got.out, c.out) || !slices.Equal(a.told, []string{c.told}) {
			t.Errorf("margolite %q: %+v, the agent was asked %q", c.args, got, a.told)
		}
	}
	a.released, a.status.Locks = nil, nil
	expect.Equal(t, call(t, "release", "--config", file), answer{command.Done, "There is no lock to release.\n", ""}, "nothing")
	a.lock = control.Lock{Holder: "shift"}
	expect.Equal(t, call(t, "hold", "--config", file), answer{command.Done, "held by shift for all deployments until it is released\n", ""}, "without an end")
	a.siteErr = errors.New("the disk is full")
	expect.Equal(t, call(t, "hold", "--config", file), answer{command.Failed, "", "margolite: the disk is full\n"}, "a failure")
}

func TestARollbackGoesBackToWhatWasShown(t *testing.T) {
	shown := "deployment aa-11 (mixer)\n  now  " + revisionA + "\n  then " + revisionC + "\n"
	a := waiting()
	file := serve(t, a)
	call(t, "rollback", "mixer", "--config", file).ends(t, command.Failed, shown, "fix: repeat this with --yes")
	call(t, "rollback", "mixer", "-y", "--reason", "too noisy", "--config", file).
		ends(t, command.Done, shown+"The rollback has started; `margolite status` shows its progress.\n", "")
	expect.Equal(t, a.told, []string{"rollback aa-11 " + revisionC + " too noisy"}, "the agent was asked")
	// An update that failed was left as it is: what worked last is the way back.
	a.status.Deployments[0].Former = revisionA
	call(t, "rollback", "mixer", "-y", "--config", file).ends(t, command.Done, "now  "+revisionB+"\n  then "+revisionA, "")
	a.siteErr = fmt.Errorf("%w: its image is gone", control.ErrConflict)
	call(t, "rollback", "mixer", "-y", "--config", file).fails(t, "cannot roll back deployment aa-11 (mixer): not possible now: its image is gone\n")
}

func TestTheJournalIsShown(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	local := at.Local().Format(time.DateTime)
	a := waiting()
	a.entries = []control.Entry{
		{Sequence: 1, Time: at, Kind: "manifest.accepted", Version: 7, Chain: "sha256:1"},
		{Sequence: 2, Time: at, Kind: "change.rejected", Deployment: "aa-11", Revision: revisionB, By: "user operator (1000)", Text: "line\n2\truns\x1b[2J", Chain: "sha256:2"},
	}
	file := serve(t, a)
	want := local + "  manifest.accepted  -      -                     version 7\n" +
		local + "  change.rejected    aa-11  user operator (1000)  sha256:bbbbbbbbbbbb: line 2 runs[2J\n"
	expect.Equal(t, call(t, "history", "--config", file, "--last", "20", "--deployment", "mixer"), answer{command.Done, want, ""}, "for people")
	want = `{"sequence":1,"time":"2026-03-01T12:00:00Z","kind":"manifest.accepted","version":7,"chain":"sha256:1"}` + "\n" +
		`{"sequence":2,"time":"2026-03-01T12:00:00Z","kind":"change.rejected","deployment":"aa-11","revision":"` + revisionB +
		`","by":"user operator (1000)","text":"line\n2\truns\u001b[2J","chain":"sha256:2"}` + "\n"
	expect.Equal(t, call(t, "history", "--config", file, "--deployment", "one-that-is-gone", "--json"), answer{command.Done, want, ""}, "for programs")
	expect.Equal(t, a.told, []string{`history last 20 of "aa-11"`, `history last 0 of "one-that-is-gone"`}, "the agent was asked")
}

func TestTheJournalIsVerified(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	expect.Equal(t, call(t, "history", "--verify", "--config", file), answer{command.Done, "The journal is empty.\n", ""}, "empty")
	a.verified = control.Verification{Entries: 40, First: 3, Head: "sha256:1"}
	expect.Equal(t, call(t, "history", "--verify", "--config", file), answer{command.Done, "40 entries from number 3 on, none changed, removed or moved\nhead sha256:1\n", ""}, "whole")
	a.verified.Problem = "entry 7 does not follow entry 6"
	const altered = "margolite: the journal was altered: entry 7 does not follow entry 6\nfix: "
	call(t, "history", "--verify", "--config", file).ends(t, command.Failed, "", altered)
	call(t, "history", "--verify", "--json", "--config", file).ends(t, command.Failed, `"problem": "entry 7`, altered)
}
