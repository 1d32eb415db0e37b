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
func (o *Options) certified(s *compose.Service) *compose.Service {
	if o.Certificate == "" || mountedAt(s, CertificateAt) {
		return s
	}
	content, err := readFile(o.Certificate, maxCertificate)
	if err != nil {
		o.Logger.Warn("a container does not get the collector's certificate", "service", s.Name, "file", o.Certificate, "error", err)
		return s
	}
	with := *s
	with.Files = append(slices.Clip(s.Files), compose.File{Name: "collector", Target: CertificateAt, Mode: 0o444, Content: content})
	return &with
}

// environment is what the device gives to a certified service.
func (o *Options) environment(s *compose.Service) []string {
	if o.Certificate == "" || !mountedAt(s, CertificateAt) {
		return o.Environment
	}
	return append(slices.Clip(o.Environment), certificateVariable+"="+CertificateAt)
}
