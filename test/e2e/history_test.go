package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// told are the entries of the journal that `margolite history --json` prints.
func (r *rig) told() (entries []control.Entry) {
	r.t.Helper()
	out, err := r.margolite("history", "--json")
	check(r.t, err)
	for line := range strings.Lines(out) {
		var e control.Entry
		check(r.t, json.Unmarshal([]byte(line), &e))
		entries = append(entries, e)
	}
	return entries
}

// The journal has what happened in its order, with who wanted it, over kill -9;
// and it shows when somebody writes it anew.
func TestPOL06HistoryTellsWhatHappened(t *testing.T) {
	long(t, "the journal")
	r := newRigRuled(t, map[string]string{"approval": "updates"})
	run := func(args ...string) {
		t.Helper()
		_, err := r.margolite(args...)
		check(t, err)
	}
	r.install(r.Deployment(demoID, nil))
	run("hold", "--as", "shift 2", "--for", "1h", "--reason", "it is their batch")
	first := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	r.waits(demoID, first.Digest, "approval", "lock")
	run("reject", demoID, first.Digest.String(), "--reason", "not on a Friday")
	r.failsWith(demoID, "REJECTED", first.Version)
	second := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Moin"}))
	r.waits(demoID, second.Digest, "approval", "lock")
	run("approve", demoID, second.Digest.String())
	run("release", "--as", "shift 2")
	r.await(demoID, margo.Installed, second.Version)
	r.Kill()
	r.running()
	run("rollback", demoID, "--yes", "--reason", "too slow")
	r.failsWith(demoID, "ROLLED_BACK", second.Version)
	r.says(8090, "Hello")
	r.eventually("the way back is over", func() error {
		if entries := r.told(); entries[len(entries)-1].Kind != "rollback.done" {
			return fmt.Errorf("the journal is %+v", entries)
		}
		return nil
	})

	root := control.Caller{User: "root"}.String()
	want := []control.Entry{
		{Kind: "agent.started"},
		{Kind: "manifest.accepted"},
		{Kind: "change.begun", Deployment: demoID},
		{Kind: "change.done", Deployment: demoID},
		{Kind: "lock.taken", By: root, Text: "their batch"},
		{Kind: "manifest.accepted", Version: first.Version},
		{Kind: "change.rejected", Deployment: demoID, Revision: first.Digest.String(), By: root, Text: "not on a Friday"},
		{Kind: "manifest.accepted", Version: second.Version},
		{Kind: "change.approved", Deployment: demoID, Revision: second.Digest.String(), By: root},
		{Kind: "lock.released", By: root},
		{Kind: "change.begun", Deployment: demoID, Revision: second.Digest.String()},
		{Kind: "change.done", Deployment: demoID, Revision: second.Digest.String()},
		{Kind: "agent.started"},
		{Kind: "rollback.asked", Deployment: demoID, By: root, Text: "too slow"},
		{Kind: "rollback.done", Deployment: demoID},
	}
	entries := r.told()
	for i, e := range entries {
		if e.Sequence != entries[0].Sequence+uint64(i) || e.Time.IsZero() || e.Chain == "" {
			t.Errorf("entry %d of the journal is %+v", i, e)
		}
		if len(want) == 0 {
			continue
		}
		if w := want[0]; e.Kind == w.Kind && (w.Version == 0 || e.Version == w.Version) && (w.Revision == "" || e.Revision == w.Revision) &&
			e.Deployment == w.Deployment && e.By == w.By && strings.Contains(e.Text, w.Text) {
			want = want[1:]
		}
	}
	if len(want) > 0 {
		t.Errorf("the journal lacks %+v, or not in order:\n%+v", want[0], entries)
	}
	if out, err := r.margolite("history", "--verify"); err != nil || !strings.Contains(out, "entries") {
		t.Errorf("the journal does not verify: %q, %v", out, err)
	}
	if out, err := r.margolite("history", "--deployment", demoID, "--last", "1"); err != nil || !strings.Contains(out, "rollback.done") {
		t.Errorf("the last entry of the deployment is %q, %v", out, err)
	}

	before := r.services(demoID)
	r.stop()
	database := filepath.Join(r.StateDir(), "margolite.db")
	content, err := os.ReadFile(database)
	check(t, err)
	forged := bytes.ReplaceAll(content, []byte("it is their batch"), []byte("it is their fault"))
	if bytes.Equal(forged, content) {
		t.Fatal("the entry is not in the file")
	}
	check(t, os.WriteFile(database, forged, 0o600))
	r.running()
	if out, err := r.margolite("history", "--verify"); err == nil || !strings.Contains(err.Error(), "journal") {
		t.Errorf("a journal that was changed verifies: %q, %v", out, err)
	}
	r.settled(demoID)
	r.untouched(demoID, before)
}
