// Package pemfile reads PEM files with a byte order mark, missing line breaks between blocks,
// or text around them. An unreadable block is an error.
package pemfile

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

var (
	mark   = []byte("\xef\xbb\xbf")
	begin  = []byte("-----BEGIN ")
	joined = []byte("----------BEGIN ")
)

// Tidy rewrites data for encoding/pem. An error names the line of an unreadable block.
func Tidy(data []byte) ([]byte, error) {
	data = bytes.TrimPrefix(data, mark)
	data = bytes.ReplaceAll(data, joined, []byte("-----\n-----BEGIN "))
	for rest := data; ; {
		block, after := pem.Decode(rest)
		read := rest[:len(rest)-len(after)]
		if block == nil {
			read = rest
		}
		first := bytes.Index(read, begin)
		if first >= 0 && (block == nil || bytes.Contains(read[first+len(begin):], begin)) {
			line := 1 + bytes.Count(data[:len(data)-len(rest)+first], []byte("\n"))
			return nil, fmt.Errorf("line %d: cannot read the PEM block that begins here", line)
		}
		if block == nil {
			return data, nil
		}
		rest = after
	}
}

// Certificates returns at most limit certificates in data, in order. It ignores other blocks.
func Certificates(data []byte, limit int) ([]*x509.Certificate, error) {
	data, err := Tidy(data)
	if err != nil {
		return nil, err
	}
	var certificates []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return certificates, nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if len(certificates) == limit {
			return nil, fmt.Errorf("more than %d certificates", limit)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be read: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
}
