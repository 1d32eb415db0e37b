package margo

import "fmt"

// Revision is a revision of the standard, as far as the wire differs. The zero value is the
// newest.
type Revision uint8

// The label inside a document is not reliable.
const (
	RC3 Revision = iota // mutual TLS, no client id
	RC2                 // client id and signed requests
	RC1                 // the same, with the older form of capabilities
)

// Revisions are all revisions, newest first.
func Revisions() []Revision { return []Revision{RC3, RC2, RC1} }

// UnmarshalText reads a revision as it is configured: "1.0.0-rc.3".
func (r *Revision) UnmarshalText(text []byte) error {
	for _, known := range Revisions() {
		if string(text) == known.String() {
			*r = known
			return nil
		}
	}
	return fmt.Errorf("cannot use revision %.40q: expected %s, %s or %s", text, RC3, RC2, RC1)
}

func (r Revision) String() string {
	return [...]string{RC3: "1.0.0-rc.3", RC2: "1.0.0-rc.2", RC1: "1.0.0-rc.1"}[r]
}

// Signed reports whether clients of this revision have an id in the path and sign each request.
func (r Revision) Signed() bool { return r != RC3 }

// What bodies before rc.3 say of themselves (ST-18, CAP-13).
const (
	statusVersion     = "deployment.margo.org/v1alpha1"
	statusKind        = "DeploymentStatusManifest"
	capabilityVersion = "device.margo.org/v1alpha1"
	capabilityKind    = "DeviceCapabilitiesManifest"
	onboardingVersion = "onboarding.margo.org/v1alpha1"
	onboardingKind    = "OnboardingRequest"
)
