package wfmsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent/margo"
)

// Like is a WFM in the field: how it speaks, and what it does otherwise than the
// standard says.
type Like struct {
	Name, About string
	Revision    margo.Revision
	Prefix      string  // under which its interface is mounted
	URLs        URLForm // in its manifests
	Quirks      Quirks
}

// Likes is the table of the WFMs in the field.
func Likes() []Like {
	return []Like{
		{
			Name: "sandbox", About: "the Symphony-based WFM of the Margo sandbox, December 2025",
			Revision: margo.RC1, Prefix: "/v1alpha2/margo",
			Quirks: Quirks{
				PublicCertificate: true, NumberedClients: true, ClientIDAsDevice: true, CapitalisedStates: true,
				SandboxDocuments: true, ErrorMember: true, BundleETag: true,
			},
		},
		{
			Name: "sandbox-2026", About: "its newer builds, over mutual TLS",
			Revision: margo.RC3, Prefix: "/v1alpha2/margo", URLs: Legacy,
			Quirks: Quirks{LiteralAccept: true, CreatesAlways: true, KeepsDevices: true, OtherBytes: true, FloatVersions: true, BareArtifacts: true},
		},
		{
			Name: "toolkit", About: "the device supplier's mock of the conformance toolkit, over mutual TLS",
			Revision: margo.RC3, Quirks: Quirks{BindsFirst: true, OddIDs: true},
		},
		{
			Name: "toolkit-rc2", About: "the same with signed requests",
			Revision: margo.RC2, Quirks: Quirks{TargetsClient: true, OddIDs: true},
		},
		{
			Name: "tenants", About: "a commercial WFM with its tenants in the path",
			Revision: margo.RC2, Prefix: "/tenant-7", URLs: Absolute,
			Quirks: Quirks{FlatCPU: true, AnnotatedDocuments: true, Statuses: true},
		},
	}
}

// LikeNames are the names in the table.
func LikeNames() []string {
	var names []string
	for _, l := range Likes() {
		names = append(names, l.Name)
	}
	return names
}

// FindLike gives the row of that name.
func FindLike(name string) (Like, error) {
	for _, l := range Likes() {
		if l.Name == name {
			return l, nil
		}
	}
	return Like{}, fmt.Errorf("no WFM is called %q: want one of %s", name, strings.Join(LikeNames(), ", "))
}

// Apply makes the options those of this WFM.
func (l Like) Apply(o *Options) {
	o.Revision, o.Prefix, o.URLs, o.Quirks = l.Revision, l.Prefix, l.URLs, l.Quirks
	o.Quirks.PutFirst = true
}

// Quirks are departures from the standard that were met in the field.
type Quirks struct {
	PublicCertificate bool // onboarding has the form of the earliest rc.1: public_certificate is sent and client_id answered
	PutFirst          bool // capabilities may begin with PUT; else, before rc.3, a PUT of what was never posted is 404
	NumberedClients   bool // client ids are client-<hex>-<number>, and a certificate that is known is refused
	ClientIDAsDevice  bool // capabilities have to name the client id as the device's
	TargetsClient     bool // deployments are for the client id
	BindsFirst        bool // the first request of a client decides what its device is called: without a name there, as the client
	CapitalisedStates bool // states are compared with Pending, Installed ...; anything else is pending
	SandboxDocuments  bool // deployments are of kind ApplicationDeploymentManifest, with their id in metadata.id only
	OddIDs            bool // deployments need not be called by a UUID
	ErrorMember       bool // errors are {"Error": "..."}
	BundleETag        bool // the ETag of a manifest is the digest of its bundle
	LiteralAccept     bool // Accept has to be the media type and nothing else
	CreatesAlways     bool // each PUT is answered 201
	KeepsDevices      bool // capabilities cannot be deleted
	OtherBytes        bool // single documents are written otherwise than those of the bundle, which have the digests
	FloatVersions     bool // versions go through 32 bits of floating point
	BareArtifacts     bool // artifacts have no ETag and no Cache-Control
	FlatCPU           bool // capabilities have "cpu" in place of "cpus"
	Statuses          bool // statuses are posted to /statuses
	// AnnotatedDocuments: deployments are those of application.margo.org/v1alpha1, for
	// nobody by name, with their ids in metadata.annotations, of type helm.v3 or compose.
	AnnotatedDocuments bool
}

// document writes a deployment as this WFM does, for a client that calls its device so.
func (q Quirks) document(body []byte, client, device string) ([]byte, error) {
	if !q.SandboxDocuments && !q.AnnotatedDocuments && !q.TargetsClient && !q.BindsFirst {
		return body, nil
	}
	var doc struct {
		ID       string         `yaml:"id"`
		Metadata map[string]any `yaml:"metadata"`
		Spec     map[string]any `yaml:"spec"`
	}
	if err := yaml.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("cannot read document: %w", err)
	}
	kind, metadata := "ApplicationDeploymentManifest", map[string]any{"id": doc.ID, "name": doc.Metadata["name"]}
	switch {
	case q.AnnotatedDocuments:
		kind, metadata = "ApplicationDeployment", map[string]any{
			"annotations": map[string]any{"id": doc.ID, "applicationId": doc.Spec["applicationId"]},
			"name":        doc.Metadata["name"], "namespace": doc.Metadata["namespace"],
		}
		if profile, ok := doc.Spec["deploymentProfile"].(map[string]any); ok && profile["type"] == string(margo.Helm) {
			profile["type"] = "helm.v3"
		}
	case !q.SandboxDocuments:
		doc.Metadata["deviceId"] = device
		if q.TargetsClient {
			doc.Metadata["deviceId"] = client
		}
		return yaml.Marshal(doc)
	}
	delete(doc.Spec, "applicationId")
	return yaml.Marshal(map[string]any{
		"apiVersion": "application.margo.org/v1alpha1", "kind": kind, "metadata": metadata, "spec": doc.Spec,
	})
}

// status reads a report as this WFM does, and writes what it understood in the words of
// the standard.
func (q Quirks) status(body []byte) []byte {
	if !q.CapitalisedStates {
		return body
	}
	var report map[string]any
	if json.Unmarshal(body, &report) != nil {
		return body
	}
	overall, _ := report["status"].(map[string]any)
	components, _ := report["components"].([]any)
	state, _ := overall["state"].(string)
	understood := state != "" && state[0] >= 'A' && state[0] <= 'Z'
	for _, part := range append([]any{overall}, components...) {
		if part, ok := part.(map[string]any); ok {
			state, _ := part["state"].(string)
			if part["state"] = strings.ToLower(state); !understood {
				part["state"] = string(margo.Pending)
				delete(part, "error")
			}
		}
	}
	text, err := json.Marshal(report)
	if err != nil {
		return body
	}
	return text
}

// manifest writes the version of a manifest, which comes first in it.
func (q Quirks) manifest(body []byte, version uint64) []byte {
	if !q.FloatVersions {
		return body
	}
	written := strconv.FormatFloat(float64(float32(version)), 'f', -1, 64)
	return bytes.Replace(body, []byte(strconv.FormatUint(version, 10)), []byte(written), 1)
}

// single gives the bytes of a document that is asked for by itself.
func (q Quirks) single(body []byte) []byte {
	if q.OtherBytes {
		return append(bytes.Clone(body), "\n# written anew\n"...)
	}
	return body
}

// bare is a ResponseWriter that leaves out what is said about an artifact.
type bare struct{ http.ResponseWriter }

func (b bare) WriteHeader(status int) {
	b.Header().Del("ETag")
	b.Header().Del("Cache-Control")
	b.ResponseWriter.WriteHeader(status)
}
