package main

import (
	"errors"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

// served is an agent that refuses version 3 of its WFM.
func served() *fakeAgent {
	a := &fakeAgent{}
	a.status = control.Status{
		Manifest: &control.Manifest{Version: 10, Digest: "sha256:held"},
		Deployments: []control.Deployment{
			{ID: "id-1", Name: "kept"}, {ID: "id-2", Name: "other"}, {ID: "id-3", Name: "gone"},
		},
		WFM: control.WFMStatus{RefusedManifest: &control.RefusedManifest{
			Version: 3, Digest: "sha256:served", Deployments: []string{"id-1", "id-2", "id-4"},
			Added: []string{"id-4"}, Changed: []string{"id-2"}, Removed: []string{"id-3"},
		}},
	}
	return a
}

const shownRollback = `held    version 10  sha256:held
served  version 3   sha256:served
added    id-4
changed  id-2  other
removed  id-3  gone
1 deployment unchanged
`

func TestARollbackIsShownAndAccepted(t *testing.T) {
	a := served()
	call(t, "accept-rollback", "--yes", "--config", serve(t, a)).ends(t, command.Done, shownRollback+"Version 3 is accepted.\n", "")
	expect.Equal(t, a.told, []string{"accept version 3 sha256:served"}, "the agent was asked")
}

func TestARollbackNeedsARefusedManifest(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	call(t, "accept-rollback", "--yes", "--config", file).fails(t, "manifest was not refused")
	a.syncErr = errors.New("cannot reach the WFM")
	call(t, "accept-rollback", "--yes", "--config", file).fails(t, "cannot reach the WFM")
	// The poll finds out that the WFM was restored.
	a.syncErr = errors.New("manifest refused")
	a.onSync = func() { a.status = served().status }
	call(t, "accept-rollback", "--yes", "--config", file).ends(t, command.Done, "Version 3 is accepted.\n", "")
}
