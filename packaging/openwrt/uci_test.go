// Package openwrt_test shows that what OpenWrt's users write in UCI arrives as
// configuration. Its shell is any that is here, with a stand-in in testdata for
// the functions of OpenWrt that the translation uses; and that of an OpenWrt,
// where MARGOLITE_OPENWRT names its root file system.
package openwrt_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/expect"
)

// translate gives the file that uci2yaml makes of a file in UCI's form: with the
// stand-in, or with the uci of another root where the shell is there.
func translate(t *testing.T, shell []string, uci string) string {
	t.Helper()
	root := ""
	if shell[0] == "chroot" {
		root = shell[1]
	}
	dir := expect.Value(os.MkdirTemp(root, "uci2yaml"))(t)
	defer os.RemoveAll(dir)
	program := expect.Value(os.ReadFile("margolite/files/uci2yaml"))(t)
	check(t, os.WriteFile(filepath.Join(dir, "uci2yaml"), program, 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "margolite"), []byte(uci), 0o600))
	there := strings.TrimPrefix(dir, root)
	cmd := exec.Command(shell[0], append(slices.Clone(shell[1:]), there+"/uci2yaml", there+"/etc/margolite.yaml")...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "UCI_CONFIG_DIR=" + there}
	if root == "" {
		functions := expect.Value(filepath.Abs("testdata/functions.sh"))(t)
		cmd.Env = append(os.Environ(), "UCI_FUNCTIONS="+functions, "UCI_FILE="+dir+"/margolite")
	}
	if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
		t.Fatalf("%v: %v: %s", shell, err, text)
	}
	text := expect.Value(os.ReadFile(filepath.Join(dir, "etc/margolite.yaml")))(t)
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
	if root := os.Getenv("MARGOLITE_OPENWRT"); root != "" {
		all = append(all, []string{"chroot", root, "/bin/sh"})
	}
	return all
}

func TestThePackagedFileIsAConfiguration(t *testing.T) {
	uci := expect.Value(os.ReadFile("margolite/files/margolite.config"))(t)
	want := config.Default()
	want.State.Dir = "/opt/margolite"
	for _, shell := range shells(t) {
		text := translate(t, shell, string(uci))
		got, err := load(t, text)
		expect.Require(t, err == nil, "%v: %v\n%s", shell, err, text)
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
	option cpus '1.5'
	option reserved_cpus '0.5'
	option reserved_memory '64Mi'
	option reserved_storage '1g'
	list interfaces_hide 'usb'
	list label 'example.com/line=7'
	list label 'note=a = b'

config wfm 'wfm'
	option url 'https://wfm.example.com:8443'
	option tls '1.2'
	option authorization_bearer '/etc/margolite/token'

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
	option allow_cpus '0.5'
	option allow_unsignedImages '0'
	list allow_shared 'plant-net'
	list allow_ports '80'
	list allow_ports '8000-8999'

config imageKeys
	option images '*'
	list key '/etc/margolite/cosign.pub'

config imageKeys
	option images 'registry.example.com/vendor'
	list key '/etc/margolite/one.pub'
	list key '/etc/margolite/two.pub'

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

// load reads a configuration as the agent does.
func load(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "margolite.yaml")
	check(t, os.WriteFile(file, []byte(text), 0o600))
	return config.Load(file)
}

func TestUCIArrivesAsConfiguration(t *testing.T) {
	for _, shell := range shells(t) {
		text := translate(t, shell, everything)
		c, err := load(t, text)
		expect.Require(t, err == nil, "%v: %v\n%s", shell, err, text)
		for name, pair := range map[string][2]any{
			"device": {c.Device, agent.Device{
				ID: "plant-a/gw-07", SerialNumber: "0012", Vendor: `It's: "ours" # really`, Labels: map[string]any{"example.com/line": "7", "note": "a = b"},
				Offer: capability.Offer{Cores: 1.5, Reserved: capability.Reserved{Cores: 0.5, Memory: 64 << 20, Storage: 1 << 30}, HiddenInterfaces: []string{"usb"}},
			}},
			"wfm.url":      {c.WFM.URL, "https://wfm.example.com:8443"},
			"wfm.tls":      {c.WFM.TLS, "1.2"},
			"bearer":       {c.WFM.Authorization.Bearer, "/etc/margolite/token"},
			"interval":     {c.Poll.Interval, 5 * time.Minute},
			"windows":      {len(c.Poll.Windows), 2},
			"provision":    {c.Provision.From, []string{"/mnt/stick"}},
			"state.dir":    {c.State.Dir, "/mnt/disk/margolite"},
			"containerd":   {c.Runtime.Containerd, "/run/containerd/containerd.sock"},
			"pulls":        {[]int{c.Runtime.Pulls, c.Runtime.Logs.MaxFile}, []int{2, 5}},
			"approval":     {string(c.Policy.Rules.Approval), "updates"},
			"hook":         {c.Policy.Rules.Hook.Command, []string{"/usr/bin/stopped", "--line 7"}},
			"hook.timeout": {c.Policy.Rules.Hook.Timeout, 5 * time.Second},
			"allow":        {[]bool{c.Policy.Allow.Privileged, c.Policy.Allow.Tags, c.Policy.Allow.Unsigned, c.Policy.Allow.UnsignedImages}, []bool{true, false, true, false}},
			"memory":       {c.Policy.Allow.Memory, int64(512 << 20)},
			"cpus":         {c.Policy.Allow.CPUs, 0.5},
			"shared":       {c.Policy.Allow.Shared, []string{"plant-net"}},
			"ports":        {fmt.Sprint(c.Policy.Allow.Ports), "[80 8000-8999]"},
			"image keys": {c.Policy.ImageKeys, map[string][]string{
				"*": {"/etc/margolite/cosign.pub"}, "registry.example.com/vendor": {"/etc/margolite/one.pub", "/etc/margolite/two.pub"},
			}},
			"registries": {c.Registries, map[string]image.Registry{
				"registry.example.com:5000": {PlainHTTP: true, Mirrors: []string{"a.example", "b.example"}}, "other.example": {},
			}},
			"log": {c.Log.Level.String(), "DEBUG"},
		} {
			expect.Equal(t, pair[0], pair[1], "%v: %s of\n%s\n", shell, name, text)
		}
	}
}

// What UCI has no place for, or says in sections of its own.
func elsewhere() []string {
	return []string{
		"device.labels", "device.peripherals.add", "registries", "policy.imageKeys", "policy.deployments",
		"policy.allow.namespaces", "policy.allow.mounts", "policy.allow.devices", "policy.allow.capabilities", "policy.allow.unconfined",
	}
}

// No key of the configuration is forgotten.
func TestEveryKeyHasAnOption(t *testing.T) {
	reference := expect.Value(os.ReadFile("../config.yaml"))(t)
	var keys map[string]any
	check(t, yaml.Unmarshal(reference, &keys))
	var uci strings.Builder
	var want []string
	var walk func(section string, path []string, value any)
	walk = func(section string, path []string, value any) {
		name := strings.Join(append([]string{section}, path...), ".")
		if slices.Contains(elsewhere(), name) {
			return
		}
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				walk(section, append(slices.Clone(path), key), inner)
			}
			return
		case []any:
			fmt.Fprintf(&uci, "\tlist %s '1'\n", strings.Join(path, "_"))
		default:
			fmt.Fprintf(&uci, "\toption %s '1'\n", strings.Join(path, "_"))
		}
		want = append(want, name)
	}
	for section, value := range keys {
		fmt.Fprintf(&uci, "config %s '%s'\n", section, section)
		walk(section, nil, value)
	}
	expect.Require(t, len(want) >= 60, "only %d keys were found", len(want))
	for _, shell := range shells(t) {
		text := translate(t, shell, uci.String())
		var got map[string]any
		if err := yaml.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v: %v\n%s", shell, err, text)
		}
		for _, name := range want {
			var value any = got
			for _, key := range strings.Split(name, ".") {
				inner, _ := value.(map[string]any)
				value = inner[key]
			}
			expect.True(t, value != nil, "%v: no option is %s", shell, name)
		}
	}
}

// What is wrong is not hidden by the translation.
func TestWrongValuesAreRefusedByName(t *testing.T) {
	for uci, want := range map[string]string{
		"config runtime 'runtime'\n\toption pulls 'many'\n":                "runtime.pulls: expected a number",
		"config runtime 'runtime'\n\toption pulls '3}, x: {'\n":            "runtime.pulls: expected a number",
		"config policy 'policy'\n\toption allow_privileged 'perhaps'\n":    "policy.allow.privileged: expected true or false",
		"config policy 'policy'\n\toption allow_cpus '1.5.1'\n":            "policy.allow.cpus: expected",
		"config poll 'poll'\n\tlist windows 'never]'\n":                    "poll.windows[0]",
		"config registry\n\toption host \"a'b: c\"\n\toption insecure 1\n": "expected a host",
	} {
		for _, shell := range shells(t) {
			text := translate(t, shell, uci)
			expect.ErrorWith(t, expect.ErrorOf(load(t, text)), want, "%v: %s is taken as\n%s", shell, uci, text)
		}
	}
}

func TestAConfigurationOfItsOwnIsUsedAsItIs(t *testing.T) {
	for _, shell := range shells(t) {
		dir, root := t.TempDir(), ""
		if shell[0] == "chroot" {
			root = shell[1]
			dir = root
		}
		file := filepath.Join(dir, "own.yaml")
		check(t, os.WriteFile(file, []byte("log: {level: warn}\n"), 0o600))
		own := strings.TrimPrefix(file, root)
		defer os.Remove(file)
		expect.Equal(t, translate(t, shell, "config margolite 'main'\n\toption config '"+own+"'\nconfig log 'log'\n\toption level 'debug'\n"), "log: {level: warn}\n", "%v", shell)
	}
}

var check = expect.Check
