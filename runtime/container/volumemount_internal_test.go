package container

import (
	"testing"

	"github.com/margolite/margolite/test/expect"
)

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
			m := expect.Value(test.volume.mount(t.Context()))(t)
			expect.Equal(t, m.Options, test.options, "options")
		})
	}
}
