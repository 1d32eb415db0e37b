package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckTellsOfDamageUntilItIsRemoved(t *testing.T) {
	root := t.TempDir()
	if p := checkDamage(root); p != nil {
		t.Errorf("damage: %+v", p)
	}
	kept := filepath.Join(root, "io.containerd.metadata.v1.bolt", "meta.db.bad")
	check(t, errors.Join(os.Mkdir(filepath.Dir(kept), 0o700), os.WriteFile(kept, nil, 0o600)))
	if p := checkDamage(root); p == nil || p.Fatal || !strings.Contains(p.Text, kept) {
		t.Errorf("damage: %+v", p)
	}
}
