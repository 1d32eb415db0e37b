package margo

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// FindDeployment returns the id of the ApplicationDeployment in a YAML file, or "" if the file is
// something else. An ApplicationDeployment is recognised by its kind or, without a kind, by its
// shape; all other faults are left to ParseDeployment.
//
// An error says that the question cannot be answered: the file is no YAML, or holds a deployment
// without a usable id or beside other documents.
func FindDeployment(body []byte) (id string, err error) {
	// Other files may use all of YAML and be larger: only the outermost names are looked at.
	l := limits{bytes: MaxDeploymentBytes, nodes: 2 * maxDeploymentNodes}
	documents, err := yamlDocuments(body, l)
	if err == nil && !slices.ContainsFunc(documents, looksLikeDeployment) {
		return "", nil
	}
	return accept("application deployment", parseYAML, body, deploymentLimits(), (*reader).documentID)
}

// looksLikeDeployment reports whether a document is, or was meant to be, an
// ApplicationDeployment. To miss one would remove what runs, so the kind may be in another case
// and, without a kind, a spec with metadata or an id is enough.
func looksLikeDeployment(document *yaml.Node) bool {
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 || document.Content[0].Kind != yaml.MappingNode {
		return false
	}
	content := document.Content[0].Content
	members := make(map[string]*yaml.Node, len(content)/2)
	for i := 0; i+1 < len(content); i += 2 {
		if content[i].Kind == yaml.ScalarNode {
			members[content[i].Value] = content[i+1]
		}
	}
	if kind := members["kind"]; kind != nil && kind.ShortTag() != "!!null" {
		return strings.EqualFold(kind.Value, deploymentKind) || strings.EqualFold(kind.Value, sandboxKind)
	}
	return members["spec"] != nil && (members["metadata"] != nil || members["id"] != nil)
}
