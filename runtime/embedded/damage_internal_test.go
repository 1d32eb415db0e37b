package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestCheckTellsOfDamageUntilItIsRemoved(t *testing.T) {
	root := t.TempDir()
	expect.Equal(t, checkDamage(root), nil, "damage")
	kept := filepath.Join(root, "io.containerd.metadata.v1.bolt", "meta.db.bad")
	check(t, errors.Join(os.Mkdir(filepath.Dir(kept), 0o700), os.WriteFile(kept, nil, 0o600)))
	if p := checkDamage(root); p == nil || p.Fatal || !strings.Contains(p.Text, kept) {
		t.Errorf("damage: %+v", p)
	}
}
