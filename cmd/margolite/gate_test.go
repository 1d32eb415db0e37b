package main

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

// What a rule closes is closed where its links lead, also where the end of the
// path does not exist yet. A path that the site has opened is not followed: who
// may write there could make it lead to anything.
func TestRulesForMountsFollowLinks(t *testing.T) {
	root := expect.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	in := func(name string) string { return filepath.Join(root, name) }
	for _, name := range []string{"usr/bin", "data", "etc"} {
		check(t, os.MkdirAll(in(name), 0o755))
	}
	for link, target := range map[string]string{"bin": "usr/bin", "also": "usr/bin", "run": "data", "said": "data", "opened": "etc", "loop": "loop"} {
		check(t, os.Symlink(target, in(link)))
	}
	given := map[string]policy.MountAccess{
		in("also"): policy.MountBelow, in("bin"): policy.MountNever, in("run/x/y"): policy.MountNever,
		in("said"): policy.MountBelow, in("data"): policy.MountAlways, in("loop"): policy.MountNever,
		in("opened"): policy.MountAlways,
	}
	want := map[string]policy.MountAccess{in("usr/bin"): policy.MountNever, in("data/x/y"): policy.MountNever}
	for at, access := range given {
		want[at] = access
	}
	expect.Equal(t, whereLinksLead(given), want, "rules")
	if _, added := given[in("usr/bin")]; added {
		t.Error("the configuration itself was changed")
	}
}

func TestTheSocketIsSharedWithAGroup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	l := expect.Value(control.Listen(path))(t)
	defer l.Close()
	for _, group := range []string{ownGroup(t), ""} {
		expect.Error(t, share(path, group), nil, "group %q", group)
	}
	err := share(path, "nobody-has-this")
	expect.ErrorWith(t, err, path, "a group that does not exist")
	expect.Contains(t, command.HintOf(err), "groupadd --system nobody-has-this", "hint")
	expect.Error(t, share(path+".none", ""), os.ErrNotExist, "a socket that does not exist")
}

func ownGroup(t *testing.T) string {
	t.Helper()
	g, err := user.LookupGroupId(strconv.Itoa(os.Getgid()))
	if err != nil {
		t.Skip("needs a group with a name:", err)
	}
	return g.Name
}

func TestCheckSaysWhenNobodyCouldApprove(t *testing.T) {
	for name, c := range map[string]struct {
		file   string
		result string // of the finding; empty: there is none
	}{
		"nothing waits":        {"", ""},
		"updates wait":         {"policy: {approval: updates}", "warning"},
		"those of some wait":   {"policy: {deployments: [{labels: {a: b}, approval: all}]}", "warning"},
		"a group can approve":  {"policy: {approval: all}\ncontrol: {group: " + ownGroup(t) + "}", "ok"},
		"there is no such one": {"control: {group: nobody-has-this}", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			write(t, file, c.file)
			cfg := expect.Value(config.Load(file))(t)
			got := ""
			var all findings
			all.group(cfg)
			for _, f := range all {
				got = f.Result
			}
			expect.Equal(t, got, c.result, "the finding")
		})
	}
}
