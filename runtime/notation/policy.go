package notation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// document is trustpolicy.json.
type document struct {
	Version  string   `json:"version"`
	Policies []policy `json:"trustPolicies"`
}

type policy struct {
	Name         string   `json:"name"`
	Scopes       []string `json:"registryScopes"`
	Verification struct {
		Level     string            `json:"level"`
		Override  map[string]string `json:"override"`
		Timestamp string            `json:"verifyTimestamp"` // of no use without timestamps, which is stricter
	} `json:"signatureVerification"`
	Stores     []string `json:"trustStores"`
	Identities []string `json:"trustedIdentities"`

	trusted []subject // Identities; none: any
}

// The checks that a policy may enforce, or only log.
const (
	authenticity       = "authenticity"
	authenticTimestamp = "authenticTimestamp"
	expiry             = "expiry"
	revocation         = "revocation"
)

// parseDocument parses a trust policy. An unknown member is an error, as it may be a restriction.
func parseDocument(data []byte) (*document, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var d document
	if err := decoder.Decode(&d); err != nil {
		return nil, err
	}
	if d.Version != "1.0" {
		return nil, fmt.Errorf("version: expected 1.0, got %.20q", d.Version)
	}
	scopes := map[string]bool{}
	for n := range d.Policies {
		p := &d.Policies[n]
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("trust policy %q: %w", p.Name, err)
		}
		for _, scope := range p.Scopes {
			if scopes[scope] {
				return nil, fmt.Errorf("trust policy %q: registryScopes: another policy has %s as well", p.Name, scope)
			}
			scopes[scope] = true
		}
	}
	return &d, nil
}

// applicable is the policy for a repository, or nil.
func (d *document) applicable(repository string) *policy {
	for _, scope := range []string{repository, "*"} {
		if n := slices.IndexFunc(d.Policies, func(p policy) bool { return slices.Contains(p.Scopes, scope) }); n >= 0 {
			return &d.Policies[n]
		}
	}
	return nil
}

// check refuses what Notation refuses.
func (p *policy) check() error {
	v, skips := p.Verification, p.Verification.Level == "skip"
	switch everywhere := slices.Contains(p.Scopes, "*"); {
	case len(p.Scopes) == 0 || everywhere && (len(p.Scopes) > 1 || skips):
		return errors.New(`registryScopes: expected repositories, or "*" alone and not to skip`)
	case !slices.Contains([]string{"strict", "permissive", "audit", "skip"}, v.Level):
		return fmt.Errorf("signatureVerification.level: expected strict, permissive, audit or skip, got %.40q", v.Level)
	case skips != (len(p.Stores) == 0) || skips != (len(p.Identities) == 0) || skips && len(v.Override) > 0:
		return errors.New("trustStores and trustedIdentities: required, except to skip, which allows neither them nor an override")
	}
	for check, action := range v.Override {
		known := slices.Contains([]string{authenticity, authenticTimestamp, expiry, revocation}, check)
		if !known || action != "enforce" && action != "log" && (action != "skip" || check != revocation) {
			return fmt.Errorf("signatureVerification.override: unknown %.40q: %.40q", check, action)
		}
	}
	for _, s := range p.Stores {
		kind, name, _ := strings.Cut(s, ":")
		if !slices.Contains([]string{"ca", "signingAuthority", "tsa"}, kind) || strings.Trim(name, ".") == "" || path.Base(name) != name {
			return fmt.Errorf("trustStores: expected ca:NAME, got %.80q", s)
		}
	}
	if slices.Equal(p.Identities, []string{"*"}) {
		return nil
	}
	for _, identity := range p.Identities {
		text, prefixed := strings.CutPrefix(identity, "x509.subject:")
		s, err := parseSubject(text)
		if err != nil || !prefixed {
			return fmt.Errorf(`trustedIdentities: expected "*" alone, or x509.subject: and a name, got %.200q (%v)`, identity, err)
		}
		p.trusted = append(p.trusted, s)
	}
	return nil
}

func (p *policy) enforces(check string) bool {
	if action, said := p.Verification.Override[check]; said {
		return action == "enforce"
	}
	return p.Verification.Level == "strict" || p.Verification.Level == "permissive" && check == authenticity
}

// subject is a distinguished name: attributes by type, as C and OU.
type subject map[string]string

// parseSubject parses a name (RFC 4514) of unique textual attributes, as Notation demands.
func parseSubject(text string) (subject, error) {
	s := subject{}
	var attribute strings.Builder
	for escaped, rest := false, text+","; rest != ""; rest = rest[1:] {
		switch c := rest[0]; {
		case !escaped && c == '\\':
			escaped = true
			continue
		case !escaped && (c == ',' || c == ';'):
			kind, value, _ := strings.Cut(strings.Trim(attribute.String(), " "), "=")
			kind, value = strings.TrimRight(kind, " "), strings.TrimLeft(value, " ")
			if kind == "S" {
				kind = "ST"
			}
			if kind == "" || value == "" || s[kind] != "" {
				return nil, fmt.Errorf("expected attributes such as C=DE, each once, got %.80q", attribute.String())
			}
			s[kind] = value
			attribute.Reset()
		case !escaped && (c == '+' || c == '#' && strings.HasSuffix(attribute.String(), "=")):
			return nil, fmt.Errorf("unescaped %q: multi-valued and binary attributes are not supported", c)
		default:
			attribute.WriteByte(c)
		}
		escaped = false
	}
	if s["C"] == "" || s["ST"] == "" || s["O"] == "" || attribute.Len() > 0 {
		return nil, errors.New("attributes C, ST and O are required, and nothing to escape at the end")
	}
	return s, nil
}

// covers tells whether another subject has all attributes of this one.
func (s subject) covers(o subject) bool {
	for kind, value := range s {
		if o[kind] != value {
			return false
		}
	}
	return true
}
