// Package lanes has tests that run at once.
package lanes

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.MainInLanes(m)) }

func TestLeft(t *testing.T)  { meet(t, "left", "right") }
func TestRight(t *testing.T) { meet(t, "right", "left") }

// meet listens where the other does, too, until that is there.
func meet(t *testing.T, me, other string) {
	l, err := net.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(filepath.Join(os.Getenv("MEETING"), me), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(os.Getenv("MEETING"), other)); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestAlone(t *testing.T) {
	t.Run("below", func(t *testing.T) {
		switch os.Getenv("ALONE") {
		case "fails":
			t.Error("it is not so")
		case "crashes":
			os.Exit(0)
		case "hangs":
			time.Sleep(time.Hour)
		}
	})
}
