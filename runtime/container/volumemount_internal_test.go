package container

import (
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// A workload may have mounts that the device sees: no line of theirs hides another.
func TestMountPointsAreFoundBehindLongLines(t *testing.T) {
	const before, behind = "36 35 0:41 / ", " rw,relatime shared:7 - ext4 /dev/sda1 rw\n"
	long := before + "/long rw - overlay overlay rw,lowerdir=" + strings.Repeat("36 35 0:41 / /inside ", 1<<17) + "\n"
	table := long + before + `/with\040space\134` + behind + long + before + "/last" + behind
	for at, want := range map[string]bool{"/long": true, `/with space\`: true, "/last": true, "/inside": false, "/": false} {
		if is, err := hasMount(strings.NewReader(table), at); is != want || err != nil {
			t.Errorf("%s: got %t, %v", at, is, err)
		}
	}
	if _, err := hasMount(iotest.ErrReader(iotest.ErrTimeout), "/x"); err == nil {
		t.Error("a table that cannot be read has no mounts")
	}
}

func TestMountOfAVolume(t *testing.T) {
	tests := map[string]struct {
		volume  Volume
		options []string
	}{
		"what mount(8) takes for itself is left out": {
			Volume{Type: "ext4", Device: "/dev/sdx", Options: []string{"defaults", "noatime", "_netdev", "nofail", "x-systemd.automount", "comment=mine"}},
			[]string{"noatime"},
		},
		"the name of a server becomes its address":       {Volume{Type: "nfs", Device: ":/x", Options: []string{"addr=localhost", "ro"}}, []string{"addr=127.0.0.1", "ro"}},
		"an address stays":                               {Volume{Type: "nfs4", Device: ":/x", Options: []string{"addr=192.0.2.7"}}, []string{"addr=192.0.2.7"}},
		"a server before the path is one too":            {Volume{Type: "nfs", Device: "192.0.2.7:/x"}, []string{"addr=192.0.2.7"}},
		"so is one in brackets":                          {Volume{Type: "nfs", Device: "[2001:db8::7]:/x"}, []string{"addr=2001:db8::7"}},
		"a share's server is found":                      {Volume{Type: "cifs", Device: "//localhost/share", Options: []string{"guest"}}, []string{"guest", "ip=127.0.0.1"}},
		"a share's own address wins":                     {Volume{Type: "cifs", Device: "//nas.invalid/share", Options: []string{"addr=192.0.2.7"}}, []string{"addr=192.0.2.7"}},
		"a directory is bound with all that is below it": {Volume{Type: "bind", Device: "/"}, []string{"rbind"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := test.volume.mount(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(m.Options, test.options) {
				t.Errorf("got %q, want %q", m.Options, test.options)
			}
		})
	}
}
