package build_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// lines are those of Go code, of the product and of tests.
type lines struct{ product, tests int }

// slack is how far a folder may be below its number before the number has to follow.
const slack = 150

// The numbers only go down. A new folder enters the table by hand, with what went for
// it in the commit message.
var most = map[string]lines{
	"agent":                       {11010, 10598},
	"agent/clock":                 {105, 113},
	"agent/control":               {2583, 1761},
	"agent/git":                   {1824, 1686},
	"agent/identity":              {2200, 2688},
	"agent/margo":                 {3386, 2593},
	"agent/metrics":               {259, 184},
	"agent/pace":                  {588, 776},
	"agent/uplink":                {1303, 1676},
	"agent/wfm":                   {2221, 3000},
	"build":                       {47, 829},
	"capability":                  {1533, 869},
	"cmd/containerd-shim-runc-v2": {621, 639},
	"cmd/margolite":               {7625, 4498},
	"cmd/margolite-init":          {170, 180},
	"cmd/wfmsim":                  {1141, 373},
	"packaging":                   {0, 106},
	"packaging/buildroot":         {0, 98},
	"packaging/image":             {87, 0},
	"packaging/manual":            {357, 95},
	"packaging/openwrt":           {0, 312},
	"packaging/sbom":              {148, 61},
	"policy":                      {1379, 863},
	"runtime":                     {5542, 3997},
	"runtime/compose":             {5618, 2617},
	"runtime/contain":             {55, 49},
	"runtime/container":           {7212, 4744},
	"runtime/containerd":          {190, 313},
	"runtime/cosign":              {313, 264},
	"runtime/embedded":            {2280, 1261},
	"runtime/health":              {345, 248},
	"runtime/image":               {4906, 3544},
	"runtime/kernel":              {120, 136},
	"runtime/limit":               {323, 206},
	"runtime/log":                 {1316, 782},
	"runtime/network":             {6698, 4356},
	"runtime/notation":            {680, 478},
	"runtime/pemfile":             {64, 64},
	"runtime/pgp":                 {445, 274},
	"runtime/platform":            {28, 50},
	"runtime/port":                {29, 0},
	"runtime/registry":            {812, 961},
	"runtime/tree":                {508, 255},
	"store":                       {3652, 3450},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 903},
	"test/bench":                  {0, 2081},
	"test/boards":                 {0, 129},
	"test/compose":                {0, 1033},
	"test/containerdtest":         {0, 409},
	"test/cosigned":               {0, 198},
	"test/debimage":               {0, 328},
	"test/demo":                   {0, 894},
	"test/demoapp":                {0, 353},
	"test/dockerregistry":         {0, 185},
	"test/e2e":                    {0, 2753},
	"test/faults":                 {0, 2607},
	"test/field":                  {0, 810},
	"test/gitserver":              {0, 200},
	"test/image":                  {0, 561},
	"test/isolated":               {0, 725},
	"test/leftovers":              {0, 297},
	"test/neighbours":             {0, 1405},
	"test/notarized":              {0, 140},
	"test/ociimage":               {0, 679},
	"test/openapi":                {0, 63},
	"test/openpgp":                {0, 96},
	"test/packages":               {0, 399},
	"test/pki":                    {0, 477},
	"test/plant":                  {0, 1283},
	"test/requirements":           {0, 442},
	"test/servicemanager":         {0, 47},
	"test/syscalls":               {0, 225},
	"test/upgrade":                {0, 432},
	"test/wfmsim":                 {0, 5104},
}

// A folder never grows: what comes takes the place of something else.
func TestNoFolderGrows(t *testing.T) {
	now := countLines(t)
	folders := slices.AppendSeq(slices.Collect(maps.Keys(most)), maps.Keys(now))
	slices.Sort(folders)
	for _, folder := range slices.Compact(folders) {
		for _, kind := range []struct {
			name      string
			now, most int
		}{
			{"product", now[folder].product, most[folder].product},
			{"test", now[folder].tests, most[folder].tests},
		} {
			switch over := kind.now - kind.most; {
			case over > 0:
				t.Errorf("%s has %d %s lines, %d more than its %d in build/lines_test.go: take as many away", folder, kind.now, kind.name, over, kind.most)
			case over < -slack, kind.now == 0 && kind.most > 0:
				t.Errorf("%s has %d %s lines, %d fewer than its %d in build/lines_test.go: lower the number", folder, kind.now, kind.name, -over, kind.most)
			}
		}
	}
}

// countLines counts as wc does, by folder of the second level. What is under test is tests.
func countLines(t *testing.T) map[string]lines {
	t.Helper()
	root := os.DirFS("..")
	count := map[string]lines{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "dist" || name != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir(), path.Ext(name) != ".go":
			return nil
		}
		code, err := fs.ReadFile(root, name)
		parts := strings.Split(path.Dir(name), "/")
		folder := path.Join(parts[:min(len(parts), 2)]...)
		sum := count[folder]
		if n := bytes.Count(code, []byte("\n")); parts[0] == "test" || strings.HasSuffix(name, "_test.go") {
			sum.tests += n
		} else {
			sum.product += n
		}
		count[folder] = sum
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}
