package debimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

// Image is a container image of Debian packages.
type Image struct {
	Name     string   // of the repository
	Packages []string // may be empty: busybox alone
	Files    []ociimage.Entry
	Config   ocispec.ImageConfig // an empty PATH is Debian's
}

// Users are those that every image knows, with groups of the same names.
var Users = map[string]int{
	"root": 0, "mosquitto": 101, "redis": 102, "memcache": 103, "postgres": 104, "ftp": 105,
	"dnsmasq": 106, "haproxy": 107, "www-data": 33, "app": 1000, "video": 44, "nobody": 65534, "nogroup": 65534,
}

// Build makes the image. Its version is in the environment of its containers,
// as IMAGE_VERSION, and makes it different from other versions.
func (c *Cache) Build(image Image, version string) (*ociimage.Artifact, error) {
	artifact, err := c.build(image, version)
	if err != nil {
		return nil, fmt.Errorf("cannot build image %s: %w", image.Name, err)
	}
	return artifact, nil
}

func (c *Cache) build(image Image, version string) (*ociimage.Artifact, error) {
	bottom, err := base()
	if err != nil {
		return nil, err
	}
	layers := []ociimage.Layer{{Entries: bottom, Uncompressed: true}}
	if len(image.Packages) > 0 {
		archive, err := c.Layer(image.Packages)
		if err != nil {
			return nil, err
		}
		layers = append(layers, ociimage.Layer{Archive: archive, Uncompressed: true})
	}
	if len(image.Files) > 0 {
		layers = append(layers, ociimage.Layer{Entries: image.Files})
	}
	config := image.Config
	config.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"IMAGE_VERSION=" + version,
	}, config.Env...)
	return ociimage.Build(ociimage.Image{Layers: layers, Config: config})
}

// base is what lies below the packages: busybox, users and directories.
func base() ([]ociimage.Entry, error) {
	list, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the programs of busybox: %w", err)
	}
	applets := slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool { return name == "busybox" })
	entries, err := ociimage.Busybox(applets...)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"dev", "etc", "home", "lib", "proc", "root", "run", "sbin", "srv", "sys", "usr", "usr/bin", "usr/lib", "usr/sbin", "var", "var/lib", "var/log"} {
		entries = append(entries, Directory("/"+dir, "root"))
	}
	entries = append(entries,
		ociimage.Entry{Name: "tmp/", Type: tar.TypeDir, Mode: 0o1777},
		ociimage.Entry{Name: "var/tmp/", Type: tar.TypeDir, Mode: 0o1777},
		ociimage.Entry{Name: "var/run", Type: tar.TypeSymlink, Link: "../run", Mode: 0o777},
	)
	var users, groups bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(Users)) {
		if name != "nogroup" {
			fmt.Fprintf(&users, "%s:x:%d:%d::/:/bin/sh\n", name, Users[name], Users[name])
		}
		if name != "nobody" {
			fmt.Fprintf(&groups, "%s:x:%d:\n", name, Users[name])
		}
	}
	return append(entries,
		ociimage.Entry{Name: "etc/passwd", Data: users.Bytes()},
		ociimage.Entry{Name: "etc/group", Data: groups.Bytes()},
		ociimage.Entry{Name: "etc/nsswitch.conf", Data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	), nil
}

// Directory is a directory of one of the [Users].
func Directory(name, user string) ociimage.Entry {
	return ociimage.Entry{Name: strings.Trim(name, "/") + "/", Type: tar.TypeDir, UID: Users[user], GID: Users[user]}
}
