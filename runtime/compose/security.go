package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/containerd/containerd/v2/pkg/cap"
)

const maxSeccomp = 1 << 20 // bytes of a profile

func (r *resolver) security(s *Service, c types.ServiceConfig) {
	s.Privileged = c.Privileged
	s.CapAdd = r.capabilities("cap_add", c.CapAdd)
	s.CapDrop = r.capabilities("cap_drop", c.CapDrop)
	for _, option := range c.SecurityOpt {
		r.securityOption(s, option)
	}
}

func (r *resolver) capabilities(key string, written []string) []string {
	var all []string
	for _, w := range written {
		name := "CAP_" + strings.TrimPrefix(strings.ToUpper(w), "CAP_")
		if name == "CAP_ALL" {
			name = "ALL"
		} else if !slices.Contains(cap.Known(), name) {
			r.refuse(key, "has %.80q, which is not a capability", w)
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// securityOption parses name=value, or name:value as in older files.
func (r *resolver) securityOption(s *Service, option string) {
	name, value, assigned := strings.Cut(option, "=")
	if !assigned {
		name, value, assigned = strings.Cut(option, ":")
	}
	switch {
	case name == "no-new-privileges" && (!assigned || value == "true"):
		s.NoNewPrivileges = true
	case name == "no-new-privileges" && value == "false":
		s.NoNewPrivileges = false
	case name == "seccomp" && value == "unconfined":
		s.Seccomp = Seccomp{Unconfined: true}
	case name == "seccomp" && value == "builtin":
		s.Seccomp = Seccomp{}
	case name == "seccomp" && value != "":
		r.seccomp(s, value)
	case name == "apparmor" && isWord(value):
		s.AppArmor = value
	case name == "systempaths" && value == "unconfined":
		s.UnmaskedPaths = true
	case name == "label" && assigned:
		r.note("security_opt", "%q is ignored: processes have no SELinux labels", option)
	default:
		r.refuse("security_opt", "%.80q is not supported", option)
	}
}

// seccomp reads a profile in Docker's form. Applying it validates its contents.
func (r *resolver) seccomp(s *Service, file string) {
	abs, err := r.files.allowed(r.files.dir, file)
	if err != nil {
		r.refuse("security_opt", "seccomp %q %s", file, err)
		return
	}
	profile, err := r.hold(abs, maxSeccomp)
	if err == nil && !json.Valid(profile) {
		err = invalid("%s is not JSON", abs)
	}
	if err != nil {
		r.failures = append(r.failures, fmt.Errorf("service %q: security_opt: %w", r.service, err))
		return
	}
	s.Seccomp = Seccomp{Profile: profile}
}
