package margo

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/test/expect"
)

// What weighs little takes little: the texts below take up to 180 MiB to be
// parsed by the parser alone.
func TestDenseDocumentsAreRefusedBeforeTheyTakeMemory(t *testing.T) {
	fill := func(begin, repeated, end string) string {
		return begin + strings.Repeat(repeated, (MaxDeploymentBytes-len(begin)-len(end))/len(repeated)) + end
	}
	for name, text := range map[string]string{
		"a list":                   fill("a: [", "a,", "]"),
		"a list over lines":        fill("a: [", "a,\n", "]"),
		"lists in a list":          fill("a: [", "[],", "]"),
		"objects":                  fill("a: {", "a:,", "}"),
		"quotes":                   fill("a: [", `"",`, "]"),
		"lines":                    fill("", "- a\n", ""),
		"empty lines of a list":    fill("", "-\n", ""),
		"dashes":                   fill("", "- - - - - - - -\n", ""),
		"keys":                     fill("", "a: b\n", ""),
		"comments":                 fill("", "- a # b\n# c\n\n", ""),
		"questions":                fill("", "? a\n", ""),
		"aliases":                  fill("a: &a b\nc: [", "*a ,", "]"),
		"anchors":                  fill("", "- &a\n", ""),
		"tags":                     fill("", "- !a\n", ""),
		"no block scalar: quoted":  fill("a: \"\nb: |\n  \"\n  , [", "a,", "]"),
		"no block scalar: flow":    fill("a]\"b: [\"open\nc: |\n  \", ", "a,", "]"),
		"no block scalar: comment": fill("a: # |\n", "  b: c\n", ""),
		"no block scalar: a list":  fill("- a: |\n   x\n", "  b: c\n", ""),
		"other line breaks":        fill("a: |\r", "b: c\r", ""),
		"byte order marks":         fill("\ufeffa: |\n x\n\ufeff", "b: c\n", ""),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			body := []byte(text)
			runtime.ReadMemStats(&before)
			_, err := ParseDeployment(body)
			runtime.ReadMemStats(&after)
			expect.True(t, err != nil, "it is accepted")
			if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 { // all together, most of it garbage soon
				t.Errorf("it took %d KiB: %v", took>>10, err)
			}
		})
	}
}

// What a deployment embeds is no structure, however much it looks like it.
func TestEmbeddedTextsWeighNothing(t *testing.T) {
	embedded := strings.Repeat(`        {"a": [1, 2, 3], "b": "c"},`+"\n", 5000)
	document := strings.Replace(sample(), "parameters:\n", "parameters:\n    config:\n      value: |\n"+embedded+"      targets: [{pointer: CONFIG, components: [web]}]\n", 1)
	expect.Require(t, strings.Contains(document, "CONFIG"), "the example has changed:\n%s", document)
	d, err := ParseDeployment([]byte(document))
	expect.Check(t, err)
	expect.Equal(t, d.Parameters[0].Value.Text(), strings.ReplaceAll(embedded, "        {", "{"), "the text is another")
}

// sample is a deployment with parameters.
func sample() string {
	return fmt.Sprintf(`id: ad9b614e-8912-45f4-a523-372358765def
metadata:
  name: app
  namespace: n
  deviceId: edge-01
  # a comment: |
spec:
  applicationId: app
  deploymentProfile:
    type: compose
    components:
      - name: web
        properties: {repository: oci://registry.example/app, revision: 1.0.0}
  parameters:
    %s
`, "greeting: {value: hello, targets: [{pointer: GREETING, components: [web]}]}")
}

// FuzzWeigh holds the weight against what the parser makes of a text.
func FuzzWeigh(f *testing.F) {
	for _, seed := range []string{
		"", "a", "a: b\n", "- a\n- b: |\n    c: d\n  e: f\n", "a: [b, {c: d}]\n", "a: \"b\nc: |\n  d\"\n", "a: |2\n    b\n  c\n", "? a\n: b\n",
		"&a a: *a\n", "a: # |\n  b: c\n", "- - - a\n", "a: >-\n\n  b: c\nd: e\n", "--- |\n a\n", "a: 'b'\nc: 'd\n  e: |\n    f'\n", "\"a\":b\n", "[a]: b\n",
		"a:\r- b\r- c\r", "a: !!str |\n b\n", "a]\"b: [\"o\nc: |\n  \", d]\n", "%YAML 1.2\n---\na: b\n", "a: b\u2028c: d\n", sample(),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		nodes, most := 0, 2*weigh(body)+2
		for decoder := yaml.NewDecoder(bytes.NewReader(body)); ; {
			var document yaml.Node
			if decoder.Decode(&document) != nil {
				break
			}
			nodes += count(&document)
		}
		expect.Require(t, nodes <= most, "%d nodes, at most %d by weight: %q", nodes, most, body)
	})
}

func count(n *yaml.Node) int {
	sum := 1
	for _, child := range n.Content {
		sum += count(child)
	}
	return sum
}
