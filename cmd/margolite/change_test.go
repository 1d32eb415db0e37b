package main

import (
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

const (
	oneDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	twoDigest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func TestChangesForPeople(t *testing.T) {
	now := time.Now()
	later, before := now.Add(90*time.Minute+10*time.Second), now.Add(-2*time.Hour)
	said := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		change control.Pending
		want   string // below the line that names the deployment
	}{
		"an update that waits for approval": {
			control.Pending{
				Kind: "update", Revision: twoDigest, Reasons: []control.Reason{{Code: "approval", Text: "the site has to approve it"}, {Code: "lock", Text: "robot holds a lock"}},
				Services: []control.ServiceChange{
					{
						Component: "main", Service: "web", Change: "changed",
						Image:       &control.ImageChange{From: "nginx:1.26", To: "nginx:1.27", FromDigest: oneDigest, ToDigest: twoDigest, Bytes: 12_400_000},
						Environment: []control.ValueChange{{Name: "A", To: said("b\x1b[2J")}, {Name: "B", From: said("c")}, {Name: "TOKEN", From: said("(changed)"), To: said("(changed)")}},
						Ports:       &control.ListChange{Removed: []string{"0.0.0.0:80->80/tcp"}, Added: []string{"0.0.0.0:8443->443/tcp"}},
						Volumes:     &control.ListChange{Added: []string{"data:/data"}},
						Privileges:  &control.ListChange{Added: []string{"cap_add NET_ADMIN"}},
						Other:       []string{"command", "healthcheck"},
					},
					{Component: "main", Service: "new", Change: "added", Image: &control.ImageChange{To: "x:1", ToDigest: twoDigest, Bytes: 900}},
					{Component: "main", Service: "worker", Change: "removed", Image: &control.ImageChange{From: "y:1", FromDigest: oneDigest}},
				},
				Parameters: []control.ValueChange{{Name: "greeting", From: said("Hello"), To: said("Servus")}, {Name: "password", From: said("(changed)"), To: said("(changed)")}},
			},
			`  waits for approval of revision sha256:222222222222
  waits for lock: robot holds a lock
     web     image nginx:1.26 -> nginx:1.27 (12.4 MB, sha256:111111111111 -> sha256:222222222222)
             environment A: + "b\x1b[2J"
             environment B: - "c"
             environment TOKEN: (changed)
             - port 0.0.0.0:80->80/tcp
             + port 0.0.0.0:8443->443/tcp
             + volume data:/data
             + privilege cap_add NET_ADMIN
             other command, healthcheck
     new     added, image x:1 (900 B, sha256:222222222222)
     worker  removed
     parameter greeting: "Hello" -> "Servus"
     parameter password: (changed)
  margolite approve id ` + twoDigest + `   (or reject)
`,
		},
		"a removal that waits for a window": {
			control.Pending{
				Kind: "remove", Revision: oneDigest, Answer: "approved", Until: later, Reasons: []control.Reason{{Code: "window", Text: "no window is open"}},
				Services: []control.ServiceChange{{Component: "a", Service: "web", Change: "removed"}, {Component: "b", Service: "web", Change: "removed"}},
			},
			`  approved: revision sha256:111111111111, which is removed
  waits for window: no window is open
  will be applied in 1h30m
     a/web  removed
     b/web  removed
`,
		},
		"an installation that was rejected": {
			control.Pending{Kind: "install", Revision: twoDigest, Answer: "rejected", Cut: true},
			"  rejected: revision sha256:222222222222\n     ... and more\n",
		},
		"one of which nothing is known yet": {
			control.Pending{Kind: "update", Revision: "odd", Services: []control.ServiceChange{{Service: "we\nb\x1b[2J\u202e", Change: "changed", Image: &control.ImageChange{From: "a", To: "a", FromDigest: "sha256:1", ToDigest: "sha256:2"}, Ports: &control.ListChange{Added: []string{"a\n\tb"}}}}},
			"  update of revision odd\n     we b[2J  image a (sha256:1 -> sha256:2)\n              + port a  b\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := &fakeAgent{status: control.Status{Deployments: []control.Deployment{{ID: "id", Name: "app", State: "pending", Since: now, Change: &c.change}}}}
			got := call(t, "status", "--config", serve(t, a))
			_, below, _ := strings.Cut(got.out, "id  app  pending (for moments)\n")
			expect.True(t, below == c.want, "it says\n%s\nwant\n%s", below, c.want)
		})
	}

	a := &fakeAgent{status: control.Status{Locks: []control.Lock{
		{Holder: "operator", Reason: "filling\nline 3", Since: before, Until: later},
		{Holder: "robot", Deployment: "d", File: "d/robot"},
	}}}
	got := call(t, "status", "--config", serve(t, a))
	for _, want := range []string{" (in 1h30m): filling line 3, taken 2h0m ago\n", "by robot for deployment d by lock file d/robot\n"} {
		expect.Contains(t, got.out, want, "the status")
	}
}
