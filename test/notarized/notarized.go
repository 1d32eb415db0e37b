// Package notarized signs artifacts for tests as `notation sign` does, by the Notary Project's own library.
package notarized

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/notaryproject/notation-core-go/signature"
	_ "github.com/notaryproject/notation-core-go/signature/cose" // registers its form
	_ "github.com/notaryproject/notation-core-go/signature/jws"  // registers its form

	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/ociimage"
)

// Identity is a certificate with its key, and those that it leads to.
type Identity struct {
	Chain []*x509.Certificate // its own first, the root last
	Key   crypto.Signer
}

// NewKey makes a key of a kind that Notation knows: p256, p384, p521, rsa2048, rsa3072, rsa4096.
func NewKey(kind string) (crypto.Signer, error) { return cosigned.NewSigner(kind) }

// Issue makes a certificate of a key; by nil: a root. change may change what it is to be, which is one for
// signing code unless it is a root, from yesterday until in a year.
func Issue(by *Identity, key crypto.Signer, name string, change func(*x509.Certificate)) (*Identity, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), BasicConstraintsValid: true,
		Subject:  pkix.Name{Country: []string{"DE"}, Province: []string{"Berlin"}, Organization: []string{"Margo, Example"}, CommonName: name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	made := &Identity{Key: key}
	parent, signer := template, key
	if by == nil {
		template.IsCA, template.KeyUsage, template.ExtKeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign, nil
	} else {
		parent, signer, made.Chain = by.Chain[0], by.Key, by.Chain
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("cannot issue certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	made.Chain = append([]*x509.Certificate{c}, made.Chain...)
	return made, err
}

// Trust writes what `notation` reads: a trust policy, and a trust store named site with the certificate of an authority.
func (i *Identity) Trust(dir, policy string) error {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Chain[0].Raw})
	for name, data := range map[string][]byte{"trustpolicy.json": []byte(policy), "truststore/x509/ca/site/root.pem": certificate} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Revoke is a revocation list of an authority that has to be replaced in a day unless change wants something else.
func (i *Identity) Revoke(change func(*x509.RevocationList), revoked ...*Identity) ([]byte, error) {
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(24 * time.Hour)}
	for _, r := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: r.Chain[0].SerialNumber, RevocationTime: list.ThisUpdate})
	}
	if change != nil {
		change(list)
	}
	return x509.CreateRevocationList(rand.Reader, list, i.Chain[0], i.Key)
}

// Sign signs an artifact. change may change what is asked of Notation's library, as the time or the payload.
func (i *Identity) Sign(mediaType string, of *ociimage.Artifact, change func(*signature.SignRequest)) ([]byte, error) {
	payload, err := json.Marshal(map[string]any{
		"targetArtifact": map[string]any{"mediaType": of.MediaType, "digest": of.Digest, "size": len(of.Manifest)},
	})
	if err != nil {
		return nil, err
	}
	signer, err := signature.NewLocalSigner(i.Chain, i.Key)
	if err != nil {
		return nil, err
	}
	request := &signature.SignRequest{
		Payload: signature.Payload{ContentType: "application/vnd.cncf.notary.payload.v1+json", Content: payload},
		Signer:  signer, SigningTime: time.Now().Truncate(time.Second), SigningScheme: signature.SigningSchemeX509, SigningAgent: "notation-go/1.3.2",
	}
	if change != nil {
		change(request)
	}
	envelope, err := signature.NewEnvelope(mediaType)
	if err != nil {
		return nil, err
	}
	return envelope.Sign(request)
}

// Referrer is the artifact of a signature, which refers to what was signed. It goes under its own digest.
func Referrer(to *ociimage.Artifact, mediaType string, envelope []byte) (*ociimage.Artifact, error) {
	return cosigned.Refer(to, "application/vnd.cncf.notary.signature", mediaType, envelope, map[string]string{"io.cncf.notary.x509chain.thumbprint#S256": "[]"})
}
