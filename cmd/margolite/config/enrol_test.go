package config_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

// unenrolled is a device without a WFM, and a place for provisioning files.
type unenrolled struct {
	config, from, state string
}

func newDevice(t testing.TB, more string) unenrolled {
	t.Helper()
	dir := t.TempDir()
	d := unenrolled{filepath.Join(dir, "config.yaml"), filepath.Join(dir, "stick"), filepath.Join(dir, "state")}
	put(t, d.config, fmt.Sprintf("state: {dir: %s}\nprovision: {from: [%s, %s]}\n%s", d.state, filepath.Join(dir, "none"), d.from, more))
	check(t, os.Mkdir(d.from, 0o755))
	return d
}

func put(t testing.TB, path, text string) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(text), 0o600))
}

func (d unenrolled) give(t testing.TB, files map[string]string) {
	t.Helper()
	for name, text := range files {
		put(t, filepath.Join(d.from, name), text)
	}
}

// snapshot is every file of the device with its content.
func (d unenrolled) snapshot(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(filepath.Dir(d.config), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			all[path] = string(data)
			return err
		}
		return err
	})
	check(t, err)
	return all
}

const plant = `
device: {labels: {line: "7"}}
wfm: {url: https://wfm.example.com, certificate: device.pem, key: device.key, trustBundle: https://mis.example.com/bundle}
poll: {interval: 5m, windows: [Mon-Fri 22:00-04:00]}
registries: {registry.example.com: {ca: registry.pem}}
`

func TestProvisioningFilesEnrolTheDevice(t *testing.T) {
	d := newDevice(t, "device: {vendor: Northstar, labels: {rack: 12}}\npoll: {interval: 1h, windows: [Sun 01:00-02:00]}\n")
	d.give(t, map[string]string{
		"10-plant.yaml": plant, "20-gateway.yaml": "device: {id: gw-07}\npoll: {interval: 90s}\n",
		"device.pem": "certificate", "device.key": "key", "registry.pem": "authority",
		"notes.txt": "not named by anybody", "._10-plant.yaml": "\x00what some systems leave on sticks",
	})
	expect.Equal(t, expect.Value(config.Enrol(d.config))(t), d.from, "enrolled from")
	check(t, os.RemoveAll(d.from)) // the stick is pulled out
	c := expect.Value(config.Load(d.config))(t)
	if c.Device.ID != "gw-07" || c.Device.Vendor != "Northstar" || len(c.Device.Labels) != 2 || c.WFM.URL != "https://wfm.example.com" ||
		c.Poll.Interval != 90*time.Second || len(c.Poll.Windows) != 1 ||
		c.WFM.TrustBundle != "https://mis.example.com/bundle" {
		t.Errorf("the device is %+v, polls %+v of %+v", c.Device, c.Poll, c.WFM)
	}
	for path, want := range map[string]string{
		c.WFM.Certificate: "certificate", c.WFM.Key: "key", c.Registries["registry.example.com"].CA: "authority",
	} {
		data, err := os.ReadFile(path)
		if err != nil || string(data) != want || !strings.HasPrefix(path, d.state+"/") {
			t.Errorf("%s holds %q (%v), want %q", path, data, err, want)
		}
		expect.Equal(t, expect.Value(os.Stat(path))(t).Mode(), 0o600, "mode of %s", path)
	}
	for path := range d.snapshot(t) {
		expect.True(t, filepath.Base(path) != "notes.txt", "%s was taken along", path)
	}
}

func TestADeviceIsEnrolledOnce(t *testing.T) {
	d := newDevice(t, "")
	d.give(t, map[string]string{"a.yaml": "wfm: {url: https://first.example}"})
	expect.Equal(t, expect.Value(config.Enrol(d.config))(t), d.from, "enrolled from")
	before := d.snapshot(t)
	d.give(t, map[string]string{"a.yaml": "wfm: {url: https://second.example}"})
	before[filepath.Join(d.from, "a.yaml")] = "wfm: {url: https://second.example}"
	for range 2 {
		expect.Equal(t, expect.Value(config.Enrol(d.config))(t), "", "enrolled again from")
	}
	expect.Equal(t, d.snapshot(t), before, "files")
	expect.Equal(t, expect.Value(config.Load(d.config))(t).WFM.URL, "https://first.example", "the WFM")
}

func TestTheConfigurationCountsMoreThanProvisioning(t *testing.T) {
	d := newDevice(t, "wfm: {url: https://own.example}\n")
	d.give(t, map[string]string{"a.yaml": "wfm: {url: https://stick.example}"})
	expect.Equal(t, expect.Value(config.Enrol(d.config))(t), "", "enrolled from")
	expect.True(t, expect.ErrorOf(os.Stat(d.state)) != nil, "something was written")
	// Of one that was enrolled before, too.
	put(t, d.config, strings.Replace(d.snapshot(t)[d.config], "url: https://own.example", "", 1))
	expect.Equal(t, expect.Value(config.Enrol(d.config))(t), d.from, "enrolled from")
	put(t, d.config, fmt.Sprintf("state: {dir: %s}\nwfm: {url: https://own.example}\n", d.state))
	expect.Equal(t, expect.Value(config.Load(d.config))(t).WFM.URL, "https://own.example", "the WFM")
}

func TestWrongProvisioningIsRefusedAsAWhole(t *testing.T) {
	good := "wfm: {url: https://wfm.example.com}\n"
	many, library := map[string]string{}, map[string]string{"a.yaml": good}
	for i := range 300 {
		library[fmt.Sprint(i)] = ""
		if i < 20 {
			many[fmt.Sprint(i, ".yaml")] = good
		}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no WFM":                      {map[string]string{"a.yaml": "device: {id: a}\n"}, "a.yaml: wfm.url: required in one of the provisioning files"},
		"rights":                      {map[string]string{"a.yaml": good + "policy: {allow: {privileged: true}}\n"}, "a.yaml:2: policy: unknown key; known here: device, poll, registries, wfm"},
		"where things are":            {map[string]string{"a.yaml": good + "state: {dir: /tmp}\n"}, "a.yaml:2: state: unknown key"},
		"a mistake in the second one": {map[string]string{"a.yaml": good, "b.yaml": "poll: {interval: soon}\n"}, "b.yaml:1: poll.interval: expected a duration"},
		"no YAML":                     {map[string]string{"a.yaml": good, "b.yaml": "\x01"}, "b.yaml"},
		"files of the device":         {map[string]string{"a.yaml": "wfm: {url: https://a.example, authorization: {bearer: /etc/shadow}}\n"}, "wfm.authorization.bearer: expected the name of a file beside this one"},
		"files above":                 {map[string]string{"a.yaml": "wfm: {url: https://a.example, key: ../../etc/shadow}\n"}, "wfm.key: expected the name of a file beside this one"},
		"hidden files":                {map[string]string{"a.yaml": "wfm: {url: https://a.example, key: .key}\n", ".key": "k"}, "wfm.key: expected the name of a file"},
		"files that are not there":    {map[string]string{"a.yaml": "wfm: {url: https://a.example, key: device.key}\n"}, "device.key: no such file"},
		"too large a file":            {map[string]string{"a.yaml": good + strings.Repeat("#\n", 200<<10)}, "has more than 262144 bytes"},
		"too large a key":             {map[string]string{"a.yaml": "wfm: {url: https://a.example, key: k}\n", "k": strings.Repeat("k", 2<<20)}, "has more than 1048576 bytes"},
		"keys that do not agree": {map[string]string{
			"a.yaml": "wfm: {url: https://a.example, ca: ca.pem, authorization: {bearer: token}}\n",
			"b.yaml": "\nwfm: {ids: ['spiffe://a/b']}\n", "ca.pem": "c", "token": "t",
		}, "b.yaml:2: wfm.ids: conflicts with wfm.authorization"},
		"many":            {many, "has 20 provisioning files; the limit is 16"},
		"a whole library": {library, "has more than 256 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, "")
			d.give(t, c.files)
			before := d.snapshot(t)
			from, err := config.Enrol(d.config)
			if err == nil || from != "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("enrolled from %q, error %v, want %s", from, err, c.want)
			}
			expect.Equal(t, d.snapshot(t), before, "files")
			// Nothing of it stays in the way of a better one.
			for name := range c.files {
				check(t, os.Remove(filepath.Join(d.from, name)))
			}
			d.give(t, map[string]string{"good.yaml": good})
			expect.Equal(t, expect.Value(config.Enrol(d.config))(t), d.from, "enrolled from")
		})
	}
}

func TestOnlyRegularFilesAreTaken(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, file := range []string{"a.yaml", "device.key"} {
			d := newDevice(t, "")
			d.give(t, map[string]string{"b.yaml": "wfm: {url: https://a.example, key: device.key}\n"})
			check(t, make(filepath.Join(d.from, file)))
			expect.ErrorWith(t, expect.ErrorOf(config.Enrol(d.config)), file+": not a regular file", "with %s", name)
		}
	}
}

// What was cut off while it was written counts as not given.
func TestACutWhileItIsTakenOverLeavesNothing(t *testing.T) {
	d := newDevice(t, "")
	half := filepath.Join(d.state, "enrolment.new")
	check(t, os.MkdirAll(half, 0o700))
	put(t, filepath.Join(half, "old.yaml"), "wfm: {url: https://half")
	expect.Equal(t, expect.Value(config.Load(d.config))(t).WFM.URL, "", "the WFM of half an enrolment")
	d.give(t, map[string]string{"a.yaml": "wfm: {url: https://wfm.example.com}"})
	expect.Equal(t, expect.Value(config.Enrol(d.config))(t), d.from, "enrolled from")
	expect.Equal(t, expect.Value(config.Load(d.config))(t).WFM.URL, "https://wfm.example.com", "the WFM")
	for path := range d.snapshot(t) {
		expect.True(t, !strings.Contains(path, ".new") && !strings.Contains(path, "old.yaml"), "%s is left", path)
	}
}

func FuzzEnrol(f *testing.F) {
	for _, s := range []string{
		plant, "", "wfm: {url: https://a}", "wfm: {url: https://a, key: a.yaml}", "wfm: {key: .., url: 'https://a', ca: a/b}",
		"registries: {a: {ca: x, credentials: //}}", "device: &a [*a]", "wfm: {url: 'git+https://a/b', git: {token: t}}", "\xff", "--- {}\n--- {}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newDevice(t, "")
		d.give(t, map[string]string{"a.yaml": string(data), "device.pem": "c", "device.key": "k", "registry.pem": "r", "x": "x", "t": "t"})
		from, err := config.Enrol(d.config)
		c, loadErr := config.Load(d.config)
		expect.Require(t, loadErr == nil, "enrolled from %q (%v) with what cannot be read again: %v", from, err, loadErr)
		expect.Require(t, (from != "") == (err == nil && c.WFM.URL != ""), "enrolled from %q: %v, with %q", from, err, c.WFM.URL)
		if c.State.Dir != d.state || bytes.Contains(data, []byte("policy")) && len(c.Policy.Overrides) > 0 {
			t.Errorf("a provisioning file decided what it must not: %+v", c)
		}
		for _, file := range []string{c.WFM.CA, c.WFM.Authorization.Basic, c.WFM.Authorization.Bearer, c.WFM.Git.Token} {
			expect.True(t, file == "" || filepath.Dir(file) == filepath.Join(d.state, "enrolment"), "a provisioning file names %s", file)
		}
	})
}

var check = expect.Check
