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
	"agent":                       {11195, 11120},
	"agent/clock":                 {105, 113},
	"agent/control":               {2617, 1816},
	"agent/git":                   {1930, 1730},
	"agent/identity":              {2364, 2973},
	"agent/margo":                 {3574, 2834},
	"agent/metrics":               {259, 184},
	"agent/pace":                  {592, 777},
	"agent/uplink":                {1435, 1702},
	"agent/wfm":                   {2315, 3258},
	"build":                       {47, 829},
	"capability":                  {1542, 869},
	"cmd/containerd-shim-runc-v2": {541, 495},
	"cmd/margolite":               {7738, 4753},
	"cmd/margolite-init":          {170, 189},
	"cmd/wfmsim":                  {1199, 389},
	"packaging":                   {0, 106},
	"packaging/buildroot":         {0, 98},
	"packaging/image":             {87, 0},
	"packaging/manual":            {357, 95},
	"packaging/openwrt":           {0, 325},
	"packaging/sbom":              {148, 61},
	"policy":                      {1487, 888},
	"runtime":                     {5544, 3950},
	"runtime/compose":             {5618, 2617},
	"runtime/contain":             {55, 49},
	"runtime/container":           {7643, 4788},
	"runtime/containerd":          {190, 429},
	"runtime/cosign":              {303, 273},
	"runtime/embedded":            {2347, 1263},
	"runtime/health":              {354, 247},
	"runtime/image":               {5199, 3844},
	"runtime/kernel":              {120, 136},
	"runtime/limit":               {323, 206},
	"runtime/log":                 {1501, 824},
	"runtime/network":             {7213, 4481},
	"runtime/notation":            {686, 477},
	"runtime/pemfile":             {64, 64},
	"runtime/pgp":                 {449, 274},
	"runtime/platform":            {28, 50},
	"runtime/port":                {29, 0},
	"runtime/registry":            {811, 958},
	"runtime/tree":                {510, 255},
	"store":                       {3710, 3515},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 901},
	"test/bench":                  {0, 2342},
	"test/boards":                 {0, 129},
	"test/compose":                {0, 1033},
	"test/containerdtest":         {0, 446},
	"test/cosigned":               {0, 217},
	"test/debimage":               {0, 355},
	"test/demo":                   {0, 1138},
	"test/demoapp":                {0, 557},
	"test/dockerregistry":         {0, 185},
	"test/e2e":                    {0, 3900},
	"test/faults":                 {0, 2496},
	"test/field":                  {0, 810},
	"test/gitserver":              {0, 206},
	"test/image":                  {0, 580},
	"test/isolated":               {0, 654},
	"test/leftovers":              {0, 297},
	"test/neighbours":             {0, 1409},
	"test/notarized":              {0, 140},
	"test/ociimage":               {0, 697},
	"test/openapi":                {0, 63},
	"test/openpgp":                {0, 96},
	"test/packages":               {0, 399},
	"test/pki":                    {0, 580},
	"test/plant":                  {0, 1295},
	"test/requirements":           {0, 510},
	"test/servicemanager":         {0, 47},
	"test/syscalls":               {0, 225},
	"test/upgrade":                {0, 481},
	"test/wfmsim":                 {0, 5692},
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
