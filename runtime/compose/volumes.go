package compose

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// volumesByKey resolves the top-level volumes. The project gets those that services mount.
func (r *resolver) volumesByKey() map[string]*Volume {
	project := r.project.Compose
	volumes := map[string]*Volume{}
	for _, key := range project.VolumeNames() {
		c := project.Volumes[key]
		v := &Volume{Name: cmp.Or(c.Name, key), External: bool(c.External)}
		switch other, taken := r.claim(key, "volume %s", v.Name); {
		case !ValidName(key), !ValidName(v.Name):
			r.refuse("volumes."+key, "has an invalid name: use letters, digits, _, . and -")
		case taken:
			r.refuse("volumes."+key, "has the same name as volume %q", other)
		default:
			r.driverOptions("volumes."+key+".driver_opts", v, c)
		}
		volumes[key] = v
	}
	return volumes
}

func (r *resolver) driverOptions(key string, v *Volume, c types.VolumeConfig) {
	if len(c.DriverOpts) == 0 {
		return
	}
	v.Type, v.Device = c.DriverOpts["type"], c.DriverOpts["device"]
	for option := range strings.SplitSeq(c.DriverOpts["o"], ",") {
		if option != "" {
			v.Options = append(v.Options, option)
		}
	}
	bind := slices.Contains(v.Options, "bind") || slices.Contains(v.Options, "rbind")
	if bind && v.Type == "" {
		v.Type = "none"
	}
	switch {
	case v.Type == "":
		r.refuse(key, "have no type")
	case v.Type == "none" && !bind:
		r.refuse(key+".type", "\"none\" requires o: bind")
	case bind && v.Type != "none":
		r.refuse(key+".o", "has bind, which requires type: none")
	case v.Device == "":
		r.refuse(key, "have no device")
	case bind && !filepath.IsAbs(v.Device):
		r.refuse(key+".device", "%.80q is not an absolute path", v.Device)
	}
	if bind {
		v.Device = filepath.Clean(v.Device)
	}
	if v.Type == "tmpfs" {
		for _, option := range v.Options {
			if !tmpfsOption.MatchString(option) {
				r.refuse(key+".o", "has option %q, which is not supported", option)
			}
		}
	}
}
