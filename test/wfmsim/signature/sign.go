package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"
)

// Signer signs requests for tests, soundly or, where a test says so, not.
type Signer struct {
	Key        crypto.Signer
	KeyID      string   // default: "key"
	Label      string   // default: sig1
	Components []string // default: what has to be covered
	Algorithm  string   // default: the key's; also sent where NameAlgorithm says so
	Created    time.Time

	NameAlgorithm bool
}

// Sign adds Content-Digest, Signature-Input and Signature to a request that is
// about to be sent, and leaves its body as it was.
func (s Signer) Sign(r *http.Request) error {
	body, err := reread(r)
	if err != nil {
		return err
	}
	components := s.Components
	if components == nil {
		components = []string{"@method", "@target-uri"}
	}
	if len(body) > 0 {
		sum := sha256.Sum256(body)
		r.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
		if s.Components == nil {
			components = append(components, "content-digest")
		}
	}
	list := httpsfv.InnerList{Params: httpsfv.NewParams()}
	for _, name := range components {
		list.Items = append(list.Items, httpsfv.NewItem(name))
	}
	list.Params.Add("created", s.Created.Unix())
	keyID := s.KeyID
	if keyID == "" {
		keyID = "key"
	}
	list.Params.Add("keyid", keyID)
	algorithm := s.Algorithm
	if algorithm == "" {
		algorithm = usual(s.Key.Public())
	}
	if s.NameAlgorithm {
		list.Params.Add("alg", algorithm)
	}
	received := r.Clone(r.Context())
	if received.Host == "" {
		received.Host = r.URL.Host
	}
	base, refusal := Message{Request: received, Scheme: r.URL.Scheme, Body: body}.base(list, &Verified{})
	if refusal != nil {
		return fmt.Errorf("cannot sign: %w", refusal)
	}
	raw, err := signWith(s.Key, algorithm, base)
	if err != nil {
		return fmt.Errorf("cannot sign: %w", err)
	}
	label := s.Label
	if label == "" {
		label = "sig1"
	}
	for name, member := range map[string]httpsfv.Member{"Signature-Input": list, "Signature": httpsfv.NewItem(raw)} {
		dictionary := httpsfv.NewDictionary()
		dictionary.Add(label, member)
		text, err := httpsfv.Marshal(dictionary)
		if err != nil {
			return fmt.Errorf("cannot sign: %w", err)
		}
		r.Header.Set(name, text)
	}
	return nil
}

func reread(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// usual is the algorithm of a key.
func usual(key crypto.PublicKey) string {
	switch public := key.(type) {
	case *ecdsa.PublicKey:
		if public.Curve.Params().BitSize == 384 {
			return "ecdsa-p384-sha384"
		}
		return "ecdsa-p256-sha256"
	default:
		return "rsa-v1_5-sha256"
	}
}

func signWith(key crypto.Signer, algorithm string, base []byte) ([]byte, error) {
	if key, ok := key.(*ecdsa.PrivateKey); ok {
		sum256, sum384 := sha256.Sum256(base), sha512.Sum384(base)
		sum := sum256[:]
		if algorithm == "ecdsa-p384-sha384" {
			sum = sum384[:]
		}
		half := (key.Curve.Params().BitSize + 7) / 8
		r, s, err := ecdsa.Sign(rand.Reader, key, sum)
		if err != nil {
			return nil, err
		}
		return append(r.FillBytes(make([]byte, half)), s.FillBytes(make([]byte, half))...), nil
	}
	hash := crypto.SHA256
	var options crypto.SignerOpts = hash
	switch algorithm {
	case "rsa-v1_5-sha256":
	case "rsa-pss-sha256":
		options = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: hash}
	case "rsa-pss-sha512":
		hash = crypto.SHA512
		options = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: hash}
	default:
		return nil, errors.New("no algorithm " + algorithm)
	}
	sum := hash.New()
	sum.Write(base)
	return key.Sign(rand.Reader, sum.Sum(nil), options)
}
