package container

import (
	"slices"

	"github.com/margolite/margolite/runtime/compose"
)

const (
	// CertificateAt is where containers find the certificate of the collector.
	CertificateAt = "/etc/margolite/collector.pem"

	certificateVariable = "OTEL_EXPORTER_OTLP_CERTIFICATE"
	maxCertificate      = 64 << 10 // bytes
)

// certified is a service with the certificate of the collector among its files
// (OBS-08). What tells one configuration from another is known before, so that no
// container is made anew for it. One without it runs all the same.
func (c *Containers) certified(s *compose.Service) *compose.Service {
	if c.o.Certificate == "" || mountedAt(s, CertificateAt) {
		return s
	}
	content, err := readFile(c.o.Certificate, maxCertificate)
	if err != nil {
		c.o.Logger.Warn("a container does not get the collector's certificate", "service", s.Name, "file", c.o.Certificate, "error", err)
		return s
	}
	with := *s
	with.Files = append(slices.Clip(s.Files), compose.File{Name: "collector", Target: CertificateAt, Mode: 0o444, Content: content})
	return &with
}

// environment is what the device gives to a certified service.
func (c *Containers) environment(s *compose.Service) []string {
	if c.o.Certificate == "" || !mountedAt(s, CertificateAt) {
		return c.o.Environment
	}
	return append(slices.Clip(c.o.Environment), certificateVariable+"="+CertificateAt)
}
