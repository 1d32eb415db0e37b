package image_test

import (
	"cmp"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

const packageBytes = "the bytes of a package"

// pushComponent puts a component's package into a registry, changed by the test.
func pushComponent(t *testing.T, reference string, change func(*v1.Manifest)) digest.Digest {
	t.Helper()
	a := &ociimage.Artifact{}
	manifest := v1.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    v1.MediaTypeImageManifest,
		ArtifactType: "application/vnd.org.margo.component.compose+json",
		Config:       a.Add("application/vnd.oci.empty.v1+json", []byte("{}")),
		Layers:       []v1.Descriptor{a.Add("application/vnd.org.margo.component.compose.tar+gzip", []byte(packageBytes))},
	}
	if change != nil {
		change(&manifest)
	}
	expect.Check(t, a.Seal(v1.MediaTypeImageManifest, manifest))
	return containerdtest.Push(t, a, reference)
}

func TestPKG01ArtifactIsTheOneLayerOfAComponent(t *testing.T) {
	w := watch(t)
	want := pushComponent(t, w.host+"/group/component:1.0.0", nil)
	images := open(t, nil, w.plain())
	for name, ask := range map[string][2]string{
		"by tag":            {w.host + "/group/component", "1.0.0"},
		"by digest":         {w.host + "/group/component", want.String()},
		"with OCI's scheme": {"oci://" + w.host + "/group/component", "1.0.0"},
	} {
		var last image.Progress
		data, origin, err := images.Artifact(t.Context(), ask[0], ask[1], image.ArtifactLimits{Size: 1 << 20},
			func(p image.Progress) { last = p })
		expect.True(t, err == nil && string(data) == packageBytes && origin == want, "%s: %q from %s, %v", name, data, origin, err)
		expect.True(t, last.Done == last.Total && last.Total > int64(len(packageBytes)), "%s: last report %+v", name, last)
	}
}

func TestArtifactRefusesEverythingElse(t *testing.T) {
	w := watch(t)
	images := open(t, nil, w.plain())
	other := []byte("other bytes of the same size")[:len(packageBytes)]
	expect.Check(t, (ociimage.Registry{URL: "http://" + w.host}).PushBlob(t.Context(), "c", other))
	for name, test := range map[string]struct {
		change    func(*v1.Manifest)
		interfere func(http.ResponseWriter, *http.Request) bool
		limit     int64
		tag       string
		want      fault.Code
	}{
		"PKG-03 an artifact of Docker": {want: fault.InvalidPackage, change: func(m *v1.Manifest) {
			m.ArtifactType = "application/vnd.docker.compose.project"
		}},
		"PKG-02 an artifact type in the configuration alone": {want: fault.InvalidPackage, change: func(m *v1.Manifest) {
			m.Config.MediaType, m.ArtifactType = m.ArtifactType, ""
		}},
		"PKG-02 an artifact type with a suffix": {want: fault.InvalidPackage, change: func(m *v1.Manifest) { m.ArtifactType += ";v=1" }},
		"PKG-02 no layer":                       {want: fault.InvalidPackage, change: func(m *v1.Manifest) { m.Layers = nil }},
		"PKG-02 two layers": {want: fault.InvalidPackage, change: func(m *v1.Manifest) {
			m.Layers = append(m.Layers, m.Layers[0])
		}},
		"PKG-02 a layer of another type": {want: fault.InvalidPackage, change: func(m *v1.Manifest) {
			m.Layers[0].MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
		}},
		"a layer without a digest":    {want: fault.InvalidPackage, change: func(m *v1.Manifest) { m.Layers[0].Digest = "sha256:1" }},
		"a layer of negative size":    {want: fault.InvalidPackage, change: func(m *v1.Manifest) { m.Layers[0].Size = -1 }},
		"a layer smaller than it is":  {want: fault.Garbled, change: func(m *v1.Manifest) { m.Layers[0].Size-- }},
		"a layer bigger than it is":   {want: fault.Garbled, change: func(m *v1.Manifest) { m.Layers[0].Size++ }},
		"a layer bigger than allowed": {want: fault.InvalidPackage, limit: 10},
		"a layer that is elsewhere": {want: fault.NotFound, change: func(m *v1.Manifest) {
			m.Layers[0].Digest = digest.FromString("elsewhere")
			m.Layers[0].URLs = []string{"http://" + w.host + "/v2/c/blobs/" + digest.FromBytes(other).String()}
		}},
		"PKG-04 a layer inside the manifest that is another": {change: func(m *v1.Manifest) {
			m.Layers[0].Data = []byte(strings.Repeat("x", len(packageBytes)))
		}},
		"PKG-04 damaged bytes": {want: fault.Garbled, interfere: w.damage("/blobs/")},
		"an impossible tag":    {want: fault.InvalidPackage, tag: "not a tag"},
		"a broken registry":    {want: fault.Unreachable, interfere: answer(502)},
		"another media type":   {want: fault.InvalidPackage, change: func(m *v1.Manifest) { m.MediaType = v1.MediaTypeImageIndex }},
	} {
		t.Run(name, func(t *testing.T) {
			pushComponent(t, w.host+"/c:1.0.0", test.change)
			w.set(test.interfere)
			defer w.set(nil)
			limits := image.ArtifactLimits{Size: cmp.Or(test.limit, 1<<20)}
			data, _, err := images.Artifact(t.Context(), w.host+"/c", cmp.Or(test.tag, "1.0.0"), limits, nil)
			fails(t, err, test.want, "", "artifact")
			expect.Equal(t, data != nil, err == nil, "it is there")
		})
	}
}
