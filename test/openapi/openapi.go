// Package openapi holds documents of the wire against the standard's published
// schemas, which lie in test/testdata/openapi.
package openapi

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/test/expect"
)

// Schema is one of those of a revision.
type Schema struct{ compiled *jsonschema.Schema }

// Read takes a schema from the interface of a revision, as "1.0.0-rc.3".
func Read(t testing.TB, revision, name string) Schema {
	t.Helper()
	file := "workload-management-api-" + revision + ".yaml"
	_, here, _, _ := runtime.Caller(0)
	text := expect.Value(os.ReadFile(filepath.Join(filepath.Dir(here), "../testdata/openapi", file)))(t)
	var document any
	expect.Check(t, yaml.Unmarshal(text, &document))
	data := expect.Value(json.Marshal(document))(t) // whose numbers are those of JSON
	compiler := jsonschema.NewCompiler()
	expect.Check(t, compiler.AddResource(file, parse(t, data)))
	compiled := expect.Value(compiler.Compile(file + "#/components/schemas/" + name))(t)
	return Schema{compiled}
}

// Expect fails the test where a document is not what the schema says.
func (s Schema) Expect(t testing.TB, document []byte) {
	t.Helper()
	expect.Error(t, s.compiled.Validate(parse(t, document)), nil, "%s", document)
}

func parse(t testing.TB, document []byte) any {
	t.Helper()
	parsed := expect.Value(jsonschema.UnmarshalJSON(bytes.NewReader(document)))(t)
	return parsed
}
