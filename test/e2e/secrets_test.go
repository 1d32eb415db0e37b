package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/ociimage"
)

const secretsFile = `
services:
  tools:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    secrets:
      - {source: token, uid: "1000", gid: "1001", mode: 0440}
      - key
secrets:
  token: {file: ./token.txt}
  key: {environment: API_KEY}
`

// Secrets lie in the state directory, where only root gets, and in the run
// directory, which is memory; containers see them with owner and mode, and
// neither containerd's records nor any log have them.
func TestSecretsStayInTheStateDirectory(t *testing.T) {
	long(t, "the rest of the program")
	const token, key = "ceci n'est pas un secret", "Swordfish-4711"
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		d := r.application(labID, "1.0.0", secretsFile, ociimage.Files{"token.txt": []byte(token)})
		d.Parameters["API_KEY"] = key
		r.install(d)
		for command, want := range map[string]string{
			"stat -c %a-%u-%g /run/secrets/token": "440-1000-1001\n",
			"stat -c %a-%u-%g /run/secrets/key":   "444-0-0\n",
			"cat /run/secrets/token":              token,
			"cat /run/secrets/key":                key,
		} {
			if out, err := r.margolite(append([]string{"exec", labID, "tools", "--"}, strings.Fields(command)...)...); err != nil || out != want {
				t.Errorf("%s: %q, %v", command, out, err)
			}
		}

		found := 0
		check(t, filepath.WalkDir(r.dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil // what vanishes meanwhile is no file
			}
			content, _ := os.ReadFile(path)
			if !bytes.Contains(content, []byte(token)) && !bytes.Contains(content, []byte(key)) {
				return nil
			}
			found++
			kept := false // where the agent keeps documents, packages and content
			for _, place := range []string{"files", "projects", "margolite.db", "packages"} {
				kept = kept || strings.HasPrefix(path, filepath.Join(r.StateDir(), place))
			}
			if !kept && !strings.HasPrefix(path, filepath.Join(r.RunDir(), "files")) {
				t.Errorf("a secret lies in %s", path)
			}
			if !r.isPrivate(path) {
				t.Errorf("others may read the secret in %s", path)
			}
			return nil
		}))
		if found < 4 {
			t.Errorf("secrets are in %d files, want at least those of the container, kept and placed", found)
		}
	})
}

// isPrivate says whether only root can read a file: by its own mode, or by that
// of a directory above it.
func (r *rig) isPrivate(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o007 == 0 {
		return true
	}
	for dir := filepath.Dir(path); dir != r.dir; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return true
		}
	}
	return false
}
