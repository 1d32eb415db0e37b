package image_test

import (
	"os"
	"testing"

	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.MainInLanes(m)) }
