package notation

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/runtime/pemfile"
)

const (
	maxFile          = 4 << 20 // bytes
	mostCertificates = 1000    // in one file
)

// Check reads the configuration in dir, and returns the number of trust policies.
func Check(dir string) (int, error) {
	d, err := readDocument(dir)
	if err != nil {
		return 0, err
	}
	for n := range d.Policies {
		if _, err := readRoots(dir, &d.Policies[n]); err != nil {
			return 0, err
		}
	}
	_, err = readLists(dir)
	return len(d.Policies), err
}

func readDocument(dir string) (*document, error) {
	data, err := readFile(filepath.Join(dir, "trustpolicy.oci.json"))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = readFile(filepath.Join(dir, "trustpolicy.json"))
	}
	var d *document
	if err == nil {
		d, err = parseDocument(data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read trust policy in %s: %w", dir, err)
	}
	return d, nil
}

// readRoots reads the certificates that a policy trusts. Signing authorities and timestamps are not supported.
func readRoots(dir string, p *policy) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, s := range p.Stores {
		name, ok := strings.CutPrefix(s, "ca:")
		if !ok {
			continue
		}
		err := eachFile(filepath.Join(dir, "truststore/x509/ca", name), func(data []byte) error {
			certificates, err := pemfile.Certificates(data, mostCertificates)
			if err == nil && len(certificates) == 0 {
				certificates, err = x509.ParseCertificates(data)
			}
			for _, c := range certificates {
				pool.AddCert(c)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("cannot read trust store in %s: %w", dir, err)
		}
	}
	return pool, nil
}

func readLists(dir string) ([]*x509.RevocationList, error) {
	var lists []*x509.RevocationList
	err := eachFile(filepath.Join(dir, "crl"), func(data []byte) error {
		if block, _ := pem.Decode(data); block != nil {
			data = block.Bytes
		}
		list, err := x509.ParseRevocationList(data)
		lists = append(lists, list)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read revocation lists in %s: %w", dir, err)
	}
	return lists, nil
}

// eachFile reads the files of a directory, which must not be a link.
func eachFile(dir string, read func(data []byte) error) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: expected a directory, and not a link", dir)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		data, err := readFile(name)
		if err == nil {
			err = read(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return err
}

// readFile refuses links, as Notation does, so that nothing is trusted by mistake.
func readFile(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, fmt.Errorf("%s: expected a file of at most %d bytes, and not a link", name, maxFile)
	}
	return os.ReadFile(name)
}
