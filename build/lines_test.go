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
	"agent":                       {10871, 10307},
	"agent/clock":                 {105, 113},
	"agent/control":               {2536, 1701},
	"agent/git":                   {1797, 1677},
	"agent/identity":              {2010, 2629},
	"agent/margo":                 {3385, 2568},
	"agent/metrics":               {259, 184},
	"agent/pace":                  {583, 776},
	"agent/uplink":                {1281, 1592},
	"agent/wfm":                   {2268, 2961},
	"build":                       {47, 829},
	"capability":                  {1533, 869},
	"cmd/command":                 {376, 0},
	"cmd/containerd-shim-runc-v2": {621, 588},
	"cmd/margolite":               {7276, 4522},
	"cmd/margolite-init":          {170, 180},
	"cmd/wfmsim":                  {1021, 374},
	"packaging":                   {0, 106},
	"packaging/buildroot":         {0, 98},
	"packaging/image":             {87, 0},
	"packaging/manual":            {260, 68},
	"packaging/openwrt":           {0, 314},
	"packaging/sbom":              {148, 61},
	"policy":                      {1379, 863},
	"runtime":                     {5108, 3517},
	"runtime/compose":             {5296, 2499},
	"runtime/contain":             {55, 49},
	"runtime/container":           {7132, 4488},
	"runtime/containerd":          {190, 300},
	"runtime/cosign":              {313, 264},
	"runtime/embedded":            {2247, 1220},
	"runtime/fault":               {57, 0},
	"runtime/health":              {341, 248},
	"runtime/image":               {4704, 3616},
	"runtime/kernel":              {120, 132},
	"runtime/limit":               {323, 206},
	"runtime/log":                 {1307, 751},
	"runtime/network":             {6480, 4198},
	"runtime/notation":            {680, 465},
	"runtime/pemfile":             {64, 64},
	"runtime/pgp":                 {443, 275},
	"runtime/platform":            {28, 50},
	"runtime/port":                {29, 0},
	"runtime/registry":            {801, 909},
	"runtime/tree":                {571, 273},
	"store":                       {3635, 3293},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 899},
	"test/bench":                  {0, 2024},
	"test/boards":                 {0, 129},
	"test/compose":                {0, 1033},
	"test/containerdtest":         {0, 376},
	"test/cosigned":               {0, 199},
	"test/debimage":               {0, 328},
	"test/demo":                   {0, 894},
	"test/demoapp":                {0, 353},
	"test/dockerregistry":         {0, 59},
	"test/e2e":                    {0, 2749},
	"test/faults":                 {0, 2607},
	"test/field":                  {0, 806},
	"test/gitserver":              {0, 200},
	"test/image":                  {0, 561},
	"test/isolated":               {0, 725},
	"test/leftovers":              {0, 297},
	"test/neighbours":             {0, 1405},
	"test/notarized":              {0, 121},
	"test/ociimage":               {0, 681},
	"test/openapi":                {0, 63},
	"test/openpgp":                {0, 96},
	"test/packages":               {0, 399},
	"test/pki":                    {0, 477},
	"test/plant":                  {0, 1284},
	"test/requirements":           {0, 442},
	"test/servicemanager":         {0, 47},
	"test/syscalls":               {0, 225},
	"test/upgrade":                {0, 432},
	"test/wfmsim":                 {0, 4977},
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
	check(t, err)
	return count
}
