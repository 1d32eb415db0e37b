package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/boards"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/openapi"
)

// The storage of a recorded machine is that of the machine which runs the test,
// and not compared.
const boardConfig = "device: {storage: 8Gi}\n"

// CAP-02, CAP-04, CAP-05, CAP-14: what is reported of machines whose kernels'
// files were recorded. With UPDATE=1 what is reported becomes what is expected.
func TestCAP04CAP14RecordedMachinesAreReported(t *testing.T) {
	update := os.Getenv("UPDATE") != ""
	schema := openapi.Read(t, "1.0.0-rc.3", "DeviceCapabilitiesManifest")
	recordings, err := filepath.Glob("../../capability/testdata/boards/*.board")
	expect.Require(t, err == nil && len(recordings) >= 14, "%d recordings, %v", len(recordings), err)
	config := filepath.Join(t.TempDir(), "config.yaml")
	check(t, os.WriteFile(config, []byte(boardConfig), 0o600))
	for _, recording := range recordings {
		expected := strings.TrimSuffix(recording, ".board") + ".json"
		t.Run(strings.TrimSuffix(filepath.Base(recording), ".board"), func(t *testing.T) {
			got := call(t, "capabilities", "--json", "--root", boards.Unpack(t, recording), "--config", config)
			expect.Require(t, got.code == command.Done && got.err == "", "%+v", got)
			schema.Expect(t, []byte(got.out))
			var indented bytes.Buffer
			check(t, json.Indent(&indented, []byte(got.out), "", "  "))
			if update {
				check(t, os.WriteFile(expected, indented.Bytes(), 0o644))
			}
			want := expect.Value(os.ReadFile(expected))(t)
			if diff := cmp.Diff(string(want), indented.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
