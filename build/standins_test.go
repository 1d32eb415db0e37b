package build_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/containerd/log"
	reference "github.com/santhosh-tekuri/jsonschema/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/sirupsen/logrus"
	"go.yaml.in/yaml/v4"
	"golang.org/x/net/idna"
)

// compose-go finds the same in Compose files, right ones and wrong ones, as an
// independent validator does with the same schema.
func TestStandInForJSONSchemaAgreesOnComposeFiles(t *testing.T) {
	judge := specification(t)
	files := composeFiles(t)
	if len(files) < 5 {
		t.Fatalf("only %d Compose files are here", len(files))
	}
	right, wrong := 0, 0
	for name, file := range files {
		each(file, func() {
			expected, got := judge.Validate(file), schema.Validate(file)
			if (expected == nil) != (got == nil) {
				text, _ := json.Marshal(file)
				t.Fatalf("%s: %s\nexpected %#v\ngot      %v", name, text, expected, got)
			}
			if got == nil {
				right++
			} else {
				wrong++
			}
		})
	}
	if right == 0 || wrong == 0 {
		t.Fatalf("%d files were right and %d wrong", right, wrong)
	}
}

// What is said is what the library says that the stand-in is for.
func TestStandInForJSONSchemaSaysWhatIsWrong(t *testing.T) {
	for file, expected := range map[string]string{
		`{}`:                                                           "",
		`{"services":{"web":{"image":"a"}}}`:                           "",
		`{"services":1}`:                                               "services must be a mapping",
		`{"services":{"web":{"image":["a"]}}}`:                         "services.web.image must be a string",
		`{"services":{"web":{"foo":1}}}`:                               "services.web.foo false schema",
		`{"services":{"a b":{}}}`:                                      "services additional properties 'a b' not allowed",
		`{"foo":1,"it's \"b\"":2}`:                                     ` additional properties 'foo', 'it\'s "b"' not allowed`,
		`{"services":{"web":{"privileged":1.5}}}`:                      "services.web.privileged must be a boolean or string",
		`{"services":{"web":{"cap_add":["A","B","A"]}}}`:               "services.web.cap_add items at 0 and 2 are equal",
		`{"services":{"web":{"umask":-1}}}`:                            "services.web.umask must be greater than or equal to 0",
		`{"services":{"web":{"umask":4294967296}}}`:                    "services.web.umask must be less than or equal to 4294967295",
		`{"services":{"web":{"oom_score_adj":0.5}}}`:                   "services.web.oom_score_adj must be a string",
		`{"services":{"web":{"networks":{"a":{"b":1},"c":{}}}}}`:       "services.web.networks.a additional properties 'b' not allowed",
		`{"services":{"web":{"ports":[{"target":80,"x-a":1,"b":2}]}}}`: "services.web.ports.0 additional properties 'b' not allowed",
		`{"services":{"web":{"pull_policy":"often"}}}`:                 "services.web.pull_policy 'often' does not match pattern '^(always|never|build|if_not_present|missing|refresh|daily|weekly|every_([0-9]+[wdhms])+)$'",
		`{"services":{"web":{"cgroup":"none"}}}`:                       "services.web.cgroup value must be one of 'host', 'private'",
		`{"services":{"web":{"depends_on":{"db":{}}}}}`:                "services.web.depends_on.db missing property 'condition'",
		`{"services":{"web":{"develop":{"watch":[{"path":"a"}]}}}}`:    "services.web.develop.watch.0 missing property 'action'",
	} {
		var config map[string]any
		if err := json.Unmarshal([]byte(file), &config); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got := ""
		if err := schema.Validate(config); err != nil {
			got = err.Error()
		}
		if got != expected {
			t.Errorf("%s\nexpected %s\ngot      %s", file, expected, got)
		}
	}
}

// A newer schema cannot come with a keyword that would be passed over.
func TestStandInForJSONSchemaRefusesWhatItDoesNotKnow(t *testing.T) {
	for document, expected := range map[string]string{
		`{"properties":{"a":{"minLength":1}}}`: "keyword minLength",
		`{"items":[{"type":"string"}]}`:        "no schema",
		`{"type":7}`:                           "type is no list",
		`{"enum":[1]}`:                         "enum has other elements",
		`{"minimum":0.5}`:                      "minimum is no integer",
		`{"pattern":"("}`:                      "cannot use pattern",
		`{"$ref":"#/$defs/a"}`:                 "does not lead to a definition",
		`[]`:                                   "no such document",
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(document))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("a.json", value); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compile("a.json"); err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("%s: expected %q, got %v", document, expected, err)
		}
	}
}

func FuzzStandInForJSONSchema(f *testing.F) {
	judge := specification(f)
	for _, file := range composeFiles(f) {
		text, err := json.Marshal(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"services":{"web":{"cap_add":["A","A"],"oom_score_adj":1e30,"pull_policy":"every_2d"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var file map[string]any
		if json.Unmarshal(text, &file) != nil || file == nil {
			return
		}
		expected, got := judge.Validate(file), schema.Validate(file)
		if (expected == nil) != (got == nil) {
			t.Errorf("expected %#v\ngot      %v", expected, got)
		}
	})
}

// The stand-in for golang.org/x/text gives hosts the names that the original
// would, or refuses them.
func TestStandInForTextNamesHosts(t *testing.T) {
	for name, expected := range map[string]string{
		"example.com":           "example.com",
		"EXAMPLE.com":           "example.com",
		"bücher.example":        "xn--bcher-kva.example",
		"xn--bcher-kva.example": "",
		"bu\u0308cher.example":  "",
		"BÜCHER.example":        "",
		"עברית.example":         "",
		"a_b.example":           "",
	} {
		got, err := idna.Lookup.ToASCII(name)
		if (err != nil) != (expected == "") || err == nil && got != expected {
			t.Errorf("%s: expected %q, got %q, %v", name, expected, got, err)
		}
	}
}

// The stand-in for logrus writes the lines that the original writes to files.
func TestStandInForLogrusWritesLines(t *testing.T) {
	at := time.Date(2026, 11, 22, 14, 5, 0, 120_000_000, time.UTC)
	fixed := &logrus.TextFormatter{TimestampFormat: log.RFC3339NanoFixed, FullTimestamp: true}
	for name, test := range map[string]struct {
		format logrus.Formatter
		log    func(*logrus.Entry)
		line   string
	}{
		"a warning":            {nil, func(e *logrus.Entry) { e.Warnf("%q is\nnot set", "A") }, `level=warning msg="\"A\" is\nnot set"`},
		"one word":             {nil, func(e *logrus.Entry) { e.Info("a-b._/@^+c") }, `level=info msg=a-b._/@^+c`},
		"several arguments":    {nil, func(e *logrus.Entry) { e.Warning("a", "b", 1, 2, nil) }, `level=warning msg="ab1 2 <nil>"`},
		"nothing":              {nil, func(e *logrus.Entry) { e.Error() }, `level=error`},
		"other letters":        {nil, func(e *logrus.Entry) { e.Error("é\xff") }, `level=error msg="é\xff"`},
		"below what is wanted": {nil, func(e *logrus.Entry) { e.Debug("a"); e.Debugf("a"); e.Trace("a"); e.Tracef("a") }, ``},
		"with a longer time":   {fixed, func(e *logrus.Entry) { e.Infof("a") }, `level=info msg=a`},
		"fields in order": {nil, func(e *logrus.Entry) {
			e.WithError(errors.New("no way")).WithFields(logrus.Fields{"n": 7, "b": true, "none": nil}).WithField("d", time.Second).Error("x")
		}, `level=error msg=x b=true d=1s error="no way" n=7 none="<nil>"`},
		"no error":            {nil, func(e *logrus.Entry) { e.WithError((*fs.PathError)(nil)).Errorf("x") }, `level=error msg=x error="<nil>"`},
		"fields named alike":  {nil, func(e *logrus.Entry) { e.WithField("msg", "y").Warn("x") }, `level=warning msg=x fields.msg=y`},
		"what others are not": {nil, func(e *logrus.Entry) { e.WithField("a", 1); e.Warn("x") }, `level=warning msg=x`},
	} {
		t.Run(name, func(t *testing.T) {
			var written bytes.Buffer
			logger := logrus.New()
			logger.SetOutput(&written)
			expected := `time="2026-11-22T14:05:00Z" ` + test.line + "\n"
			if test.format != nil {
				logger.SetFormatter(test.format)
				expected = `time="2026-11-22T14:05:00.120000000Z" ` + test.line + "\n"
			}
			if test.line == "" {
				expected = ""
			}
			test.log(&logrus.Entry{Logger: logger, Time: at})
			if got := written.String(); got != expected {
				t.Errorf("expected %s\ngot      %s", expected, got)
			}
		})
	}
}

// Hooks hear of what is wanted at their levels, and may add to it.
func TestStandInForLogrusFiresHooks(t *testing.T) {
	type key struct{}
	var written bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&written)
	logger.SetLevel(logrus.DebugLevel)
	hook := &heard{}
	logger.AddHook(hook)
	entry := (&logrus.Entry{Logger: logger}).WithField("a", 1).WithContext(context.WithValue(t.Context(), key{}, "b"))
	entry.Trace("not wanted")
	entry.Info("not of the hook")
	entry.Warn("said")
	if len(hook.entries) != 1 {
		t.Fatalf("heard of %d entries", len(hook.entries))
	}
	e := hook.entries[0]
	if e.Level != logrus.WarnLevel || e.Message != "said" || e.Data["a"] != 1 || e.Context.Value(key{}) != "b" || e.Time.IsZero() {
		t.Errorf("heard %+v", e)
	}
	if !strings.HasSuffix(written.String(), " msg=said a=1 heard=true\n") {
		t.Errorf("written %s", &written)
	}
	if len(entry.Data) != 1 {
		t.Errorf("the hook changed what others log: %v", entry.Data)
	}
	before := logger.ReplaceHooks(logrus.LevelHooks{})
	entry.Warn("unheard")
	if len(before[logrus.WarnLevel]) != 1 || len(hook.entries) != 1 {
		t.Errorf("%d hooks were there, one heard %d times", len(before[logrus.WarnLevel]), len(hook.entries))
	}
}

type heard struct{ entries []*logrus.Entry }

func (*heard) Levels() []logrus.Level { return []logrus.Level{logrus.WarnLevel, logrus.TraceLevel} }

func (h *heard) Fire(e *logrus.Entry) error {
	e.Data["heard"] = true
	h.entries = append(h.entries, e)
	return nil
}

// The names of levels, which shims are started with, are those of the original.
func TestStandInForLogrusKnowsLevels(t *testing.T) {
	names := []string{"panic", "fatal", "error", "warning", "info", "debug", "trace"}
	for i, level := range logrus.AllLevels {
		parsed, err := logrus.ParseLevel(strings.ToUpper(names[i]))
		if level.String() != names[i] || parsed != level || err != nil {
			t.Errorf("%s is named %s and parsed as %s, %v", names[i], level, parsed, err)
		}
	}
	if level, err := logrus.ParseLevel("warn"); level != logrus.WarnLevel || err != nil {
		t.Errorf("warn is parsed as %s, %v", level, err)
	}
	if _, err := logrus.ParseLevel("loud"); err == nil {
		t.Error("loud is a level")
	}
}

func specification(t testing.TB) *reference.Schema {
	t.Helper()
	compiled, err := reference.CompileString("compose-spec.json", schema.Schema)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// composeFiles are those of applications, by their paths.
func composeFiles(t testing.TB) map[string]map[string]any {
	t.Helper()
	files := map[string]map[string]any{}
	err := filepath.WalkDir("../runtime/compose/testdata", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("services:")) {
			return err
		}
		var file any
		if yaml.Unmarshal(text, &file) != nil {
			return nil // more than one document, and others that are no Compose files
		}
		data, err := json.Marshal(file)
		if err != nil {
			return nil // keys other than texts
		}
		var config map[string]any
		if json.Unmarshal(data, &config) == nil && config["services"] != nil {
			files[path] = config
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// each calls do with the value as it is, and after each of many small changes
// anywhere within, which it takes back.
func each(value any, do func()) {
	do()
	others := []any{nil, -1001.0, "x", []any{"a", "a"}, map[string]any{"a": 0.5}}
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			was := v[key]
			for _, other := range others {
				v[key] = other
				do()
			}
			delete(v, key)
			do()
			v[key] = was
			each(was, do)
		}
		for _, key := range []string{"x-more", "more", "a b", "type", "condition"} {
			if _, there := v[key]; !there {
				v[key] = "x"
				do()
				delete(v, key)
			}
		}
	case []any:
		for i, was := range v {
			for _, other := range others {
				v[i] = other
				do()
			}
			v[i] = was
			each(was, do)
		}
	}
}
