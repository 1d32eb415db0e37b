package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	gomodule "golang.org/x/mod/module"
)

// The parts of SPDX 2.3 that are used, in the names of its JSON.

type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []part         `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// part is a program, or a module.
type part struct {
	SPDXID           string      `json:"SPDXID"`
	Name             string      `json:"name"`
	VersionInfo      string      `json:"versionInfo"`
	PackageFileName  string      `json:"packageFileName,omitempty"`
	Supplier         string      `json:"supplier"`
	DownloadLocation string      `json:"downloadLocation"`
	SourceInfo       string      `json:"sourceInfo,omitempty"` // of a module its checksum in go.sum, which is not that of an archive
	FilesAnalyzed    bool        `json:"filesAnalyzed"`
	Checksums        []checksum  `json:"checksums,omitempty"`
	LicenseConcluded string      `json:"licenseConcluded"`
	LicenseDeclared  string      `json:"licenseDeclared"`
	CopyrightText    string      `json:"copyrightText"`
	Comment          string      `json:"comment,omitempty"`
	ExternalRefs     []reference `json:"externalRefs,omitempty"`
	Purpose          string      `json:"primaryPackagePurpose"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	documentID = "SPDXRef-DOCUMENT"
	unknown    = "NOASSERTION"
)

// document is the same for the same programs.
func (r *release) document() document {
	sums := ""
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID,
		Name:         r.name + "-" + r.version,
		CreationInfo: creation{r.created.Format(time.RFC3339), []string{"Organization: margolite maintainers", "Tool: margolite/packaging/sbom"}},
	}
	relate := func(element, kind, related string) {
		d.Relationships = append(d.Relationships, relationship{element, kind, related})
	}
	for _, p := range r.programs {
		id := "SPDXRef-Program-" + plain(p.name)
		d.Packages = append(d.Packages, part{
			SPDXID: id, Name: p.name, VersionInfo: r.version, PackageFileName: p.name,
			Supplier: "Organization: margolite maintainers", DownloadLocation: "https://" + own,
			Checksums:        []checksum{{"SHA256", p.sha256}},
			LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0", CopyrightText: "2026 the margolite maintainers",
			Comment:      strings.TrimSpace(fmt.Sprintf("for %s, built with Go %s %s", p.target, p.golang, tags(p.tags))),
			ExternalRefs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + own + "@" + r.version}},
			Purpose:      "APPLICATION",
		})
		relate(documentID, "DESCRIBES", id)
		sums += p.sha256
	}
	for _, m := range r.modules {
		id := "SPDXRef-Module-" + plain(m.path+"-"+m.version)
		d.Packages = append(d.Packages, part{
			SPDXID: id, Name: m.path, VersionInfo: m.version,
			Supplier: unknown, DownloadLocation: m.location(), SourceInfo: m.sum,
			LicenseConcluded: m.expression(), LicenseDeclared: m.expression(), CopyrightText: m.copyright(),
			ExternalRefs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.path + "@" + m.version}},
			Purpose:      "LIBRARY",
		})
		for _, user := range m.users {
			relate("SPDXRef-Program-"+plain(user), "STATIC_LINK", id)
		}
	}
	// It has to be another one for other programs.
	d.DocumentNamespace = fmt.Sprintf("https://%s/spdx/%s-%x", own, d.Name, sha256.Sum256([]byte(sums)))
	return d
}

func tags(list string) string {
	if list == "" {
		return ""
	}
	return "and the tags " + list
}

// plain is a text with what identifiers of SPDX may have, unique for what is named here.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, text)
}

func (m module) location() string {
	if m.path == "stdlib" {
		return "https://go.dev/dl/go" + m.version + ".src.tar.gz"
	}
	path, err := gomodule.EscapePath(m.path)
	version, err2 := gomodule.EscapeVersion(m.version)
	if err != nil || err2 != nil {
		return unknown
	}
	return "https://proxy.golang.org/" + path + "/@v/" + version + ".zip"
}

// copyright are the lines of the licenses that name whose they are.
func (m module) copyright() string {
	var lines []string
	for _, l := range m.licenses {
		for line := range strings.Lines(string(l.text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "Copyright ") && strings.ContainsAny(line, "0123456789©") && !strings.Contains(line, "[yyyy]") {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) == 0 {
		return unknown
	}
	return strings.Join(lines, "\n")
}
