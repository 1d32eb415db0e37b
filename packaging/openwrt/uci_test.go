// Package openwrt_test shows that what OpenWrt's users write in UCI arrives as
// configuration. Its shell is any that is here; the functions of OpenWrt that
// the translation uses are in testdata.
package openwrt_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/cmd/margolite/config"
)

// translate gives the file that uci2yaml makes of a file in UCI's form.
func translate(t *testing.T, shell []string, uci string) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "uci"), filepath.Join(dir, "etc/margolite.yaml")
	if err := os.WriteFile(in, []byte(uci), 0o600); err != nil {
		t.Fatal(err)
	}
	functions, err := filepath.Abs("testdata/functions.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(shell[0], append(shell[1:], "margolite/files/uci2yaml", out)...)
	cmd.Env = append(os.Environ(), "UCI_FUNCTIONS="+functions, "UCI_FILE="+in)
	if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
		t.Fatalf("%v: %v: %s", shell, err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shells are those that OpenWrt's may be like, as far as they are here.
func shells(t *testing.T) [][]string {
	t.Helper()
	var all [][]string
	for _, shell := range [][]string{{"busybox", "sh"}, {"dash"}, {"bash"}} {
		if _, err := exec.LookPath(shell[0]); err == nil {
			all = append(all, shell)
		}
	}
	return all
}

func TestThePackagedFileIsAConfiguration(t *testing.T) {
	uci, err := os.ReadFile("margolite/files/margolite.config")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.State.Dir = "/opt/margolite"
	for _, shell := range shells(t) {
		text := translate(t, shell, string(uci))
		got, err := config.Parse("margolite.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v: %v\n%s", shell, err, text)
		}
		if changed := got.Changed(want); len(changed.Parts) > 0 {
			t.Errorf("%v: %v differ from the defaults:\n%s", shell, changed.Parts, text)
		}
	}
}

const everything = `
config device 'device'
	option id 'plant-a/gw-07'
	option serialNumber '0012'
	option vendor 'It'"'"'s: "ours" # really'
	list label 'example.com/line=7'
	list label 'note=a = b'

config wfm 'wfm'
	option url 'https://wfm.example.com:8443'
	option tls '1.2'
	option authorization_bearer '/etc/margolite/token'
	option limits_entries '50'
	option limits_manifest '2MiB'

config poll 'poll'
	option interval '5m'
	list windows 'Mon-Fri 22:00-04:00'
	list windows 'Sun 00:00-24:00 UTC'

config provision 'provision'
	list from '/mnt/stick'

config state 'state'
	option dir '/mnt/disk/margolite'

config runtime 'runtime'
	option containerd '/run/containerd/containerd.sock'
	option pulls '2'
	option logs_maxFile '5'

config policy 'policy'
	option approval 'updates'
	option hook_timeout '5s'
	list hook_command '/usr/bin/stopped'
	list hook_command '--line 7'
	option allow_privileged '1'
	option allow_tags 'off'
	option allow_memory '512Mi'

config registry
	option host 'registry.example.com:5000'
	option plainHTTP 'on'
	list mirrors 'a.example'
	list mirrors 'b.example'

config registry
	option host 'other.example'
	option insecure '0'

config log 'log'
	option level 'debug'
`

func TestUCIArrivesAsConfiguration(t *testing.T) {
	for _, shell := range shells(t) {
		text := translate(t, shell, everything)
		c, err := config.Parse("margolite.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v: %v\n%s", shell, err, text)
		}
		for name, pair := range map[string][2]any{
			"device":       {c.Device, config.Device{ID: "plant-a/gw-07", SerialNumber: "0012", Vendor: `It's: "ours" # really`, Labels: map[string]any{"example.com/line": "7", "note": "a = b"}}},
			"wfm.url":      {c.WFM.URL, "https://wfm.example.com:8443"},
			"wfm.tls":      {c.WFM.TLS, "1.2"},
			"bearer":       {c.WFM.Authorization.Bearer, "/etc/margolite/token"},
			"limits":       {[]int64{int64(c.WFM.Limits.Entries), c.WFM.Limits.Manifest}, []int64{50, 2 << 20}},
			"interval":     {c.Poll.Interval, 5 * time.Minute},
			"windows":      {len(c.Poll.Windows), 2},
			"provision":    {c.Provision.From, []string{"/mnt/stick"}},
			"state.dir":    {c.State.Dir, "/mnt/disk/margolite"},
			"containerd":   {c.Runtime.Containerd, "/run/containerd/containerd.sock"},
			"pulls":        {[]int{c.Runtime.Pulls, c.Runtime.Logs.MaxFile}, []int{2, 5}},
			"approval":     {string(c.Policy.Rules.Approval), "updates"},
			"hook":         {c.Policy.Rules.Hook.Command, []string{"/usr/bin/stopped", "--line 7"}},
			"hook.timeout": {c.Policy.Rules.Hook.Timeout, 5 * time.Second},
			"allow":        {[]bool{c.Policy.Allow.Privileged, c.Policy.Allow.Tags, c.Policy.Allow.Unsigned}, []bool{true, false, true}},
			"memory":       {c.Policy.Allow.Memory, int64(512 << 20)},
			"registries": {c.Registries, map[string]config.Registry{
				"registry.example.com:5000": {PlainHTTP: true, Mirrors: []string{"a.example", "b.example"}}, "other.example": {},
			}},
			"log": {c.Log.Level.String(), "DEBUG"},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%v: %s is %#v, want %#v\n%s", shell, name, pair[0], pair[1], text)
			}
		}
	}
}

// What is wrong is not hidden by the translation.
func TestWrongValuesAreRefusedByName(t *testing.T) {
	for uci, want := range map[string]string{
		"config runtime 'runtime'\n\toption pulls 'many'\n":                "runtime.pulls: expected a number",
		"config runtime 'runtime'\n\toption pulls '3}, x: {'\n":            "runtime.pulls: expected a number",
		"config policy 'policy'\n\toption allow_privileged 'perhaps'\n":    "policy.allow.privileged: expected true or false",
		"config poll 'poll'\n\tlist windows 'never]'\n":                    "poll.windows[0]",
		"config registry\n\toption host \"a'b: c\"\n\toption insecure 1\n": "expected a host",
	} {
		for _, shell := range shells(t) {
			text := translate(t, shell, uci)
			if _, err := config.Parse("margolite.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %s is taken as\n%s\nwith %v, want %s", shell, uci, text, err, want)
			}
		}
	}
}

func TestAConfigurationOfItsOwnIsUsedAsItIs(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(own, []byte("log: {level: warn}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells(t) {
		if got := translate(t, shell, "config margolite 'main'\n\toption config '"+own+"'\nconfig log 'log'\n\toption level 'debug'\n"); got != "log: {level: warn}\n" {
			t.Errorf("%v: it says %s", shell, got)
		}
	}
}
