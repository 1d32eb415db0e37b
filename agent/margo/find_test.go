package margo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

func TestFindDeployment(t *testing.T) {
	const id = "ad9b614e-8912-45f4-a523-372358765def"
	tests := []struct {
		name, file string
		id         string // expected; empty: something else
		refused    string // part of the error
	}{
		{name: "rc.3", file: "id: " + id + "\nmetadata: {name: a}\nspec: {}\n", id: id},
		{name: "pre-draft", file: "kind: ApplicationDeployment\nmetadata: {annotations: {id: " + id + "}}\nspec: {}\n", id: id},
		{name: "only a kind and an id", file: "kind: ApplicationDeployment\nid: " + id + "\n", id: id},
		{name: "behind a mark", file: "---\nid: " + id + "\nspec: {}\n", id: id},
		{name: "without metadata", file: "id: " + id + "\nspec: {}\n", id: id},
		{name: "nothing", file: ""},
		{name: "a remark", file: "# nothing yet\n"},
		{name: "a list", file: "- id: " + id + "\n"},
		{name: "a word", file: "kind\n"},
		{name: "a Compose file with merge keys", file: "x-base: &base {restart: always}\nservices:\n  a:\n    <<: *base\n    image: i\n"},
		{name: "an application description", file: "kind: ApplicationDescription\nmetadata: {id: a}\nspec: {}\n"},
		{name: "a stream of other things", file: "kind: Service\n---\nkind: Deployment\nspec: {}\n"},
		{name: "tags of a tool", file: "script: !reference [a, b]\n"},

		{name: "another case of the kind", file: "kind: applicationdeployment\nspec: {}\n", refused: "/id"},
		{name: "no id", file: "metadata: {}\nspec: {}\n", refused: "/id: is missing"},
		{name: "an id that is no UUID", file: "id: one\nspec: {}\n", id: "one"},
		{name: "the kind and the place of a WFM in the field", file: "kind: ApplicationDeploymentManifest\nmetadata: {id: " + id + "}\n", id: id},
		{name: "an id that leads elsewhere", file: "id: ../one\nspec: {}\n", refused: "must be a UUID"},
		{name: "two ids", file: "id: " + id + "\nmetadata: {annotations: {id: one}}\nspec: {}\n", refused: "contradicts /id"},
		{name: "a kind that is null", file: "kind:\nmetadata: {}\nspec: {}\n", refused: "/id: is missing"},
		{name: "empty documents around it", file: "# of a tool\n---\nid: " + id + "\nspec: {}\n---\n", id: id},
		{name: "two documents", file: "id: " + id + "\nspec: {}\n---\nkind: Service\n", refused: "more than one YAML document"},
		{name: "a template", file: "{{ if .Values.a }}\nkind: x\n{{ end }}\n", refused: "is not YAML"},
		{name: "no UTF-8", file: "a: \xff\n", refused: "is not UTF-8"},
		{name: "too large", file: strings.Repeat("#", margo.MaxDeploymentBytes+1), refused: "is larger than"},
		{name: "a key twice", file: "id: " + id + "\nid: " + id + "\nspec: {}\n", refused: "duplicate key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, err := margo.FindDeployment([]byte(tt.file))
			var violations margo.Errors
			switch {
			case id != tt.id:
				t.Errorf("id is %q, want %q", id, tt.id)
			case tt.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.refused != "" && (!errors.As(err, &violations) || !strings.Contains(err.Error(), tt.refused)):
				t.Errorf("error is %v, want one of margo.Errors with %q", err, tt.refused)
			}
		})
	}
}

func FuzzFindDeployment(f *testing.F) {
	f.Add([]byte("id: ad9b614e-8912-45f4-a523-372358765def\nmetadata: {name: a}\nspec: {}\n"))
	f.Add([]byte("kind: ApplicationDeployment\nmetadata: {annotations: {id: ad9b614e-8912-45f4-a523-372358765def}}\n"))
	f.Add([]byte("a: &a [*a]\n---\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		id, err := margo.FindDeployment(file)
		expect.Require(t, err == nil || id == "", "id %q beside the error %v", id, err)
		// What has an id can be told from other deployments, also where it is
		// refused.
		if d, _ := margo.ParseDeployment(file); id != "" && (d == nil || d.ID != id) {
			t.Fatalf("id is %q, that of the parsed document %+v", id, d)
		}
	})
}
