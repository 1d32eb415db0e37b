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
	"agent":                       {11953, 12118},
	"agent/clock":                 {105, 113},
	"agent/control":               {2782, 1873},
	"agent/git":                   {1980, 1698},
	"agent/identity":              {2381, 3169},
	"agent/margo":                 {3658, 2869},
	"agent/metrics":               {302, 184},
	"agent/pace":                  {603, 809},
	"agent/uplink":                {1454, 1711},
	"agent/wfm":                   {2466, 3735},
	"build":                       {47, 862},
	"capability":                  {1546, 879},
	"cmd/containerd-shim-runc-v2": {549, 497},
	"cmd/margolite":               {8101, 4742},
	"cmd/margolite-init":          {172, 189},
	"cmd/wfmsim":                  {1340, 424},
	"packaging":                   {0, 106},
	"packaging/buildroot":         {0, 98},
	"packaging/image":             {87, 0},
	"packaging/manual":            {358, 95},
	"packaging/openwrt":           {0, 338},
	"packaging/sbom":              {148, 61},
	"policy":                      {1577, 957},
	"runtime":                     {5694, 4384},
	"runtime/compose":             {5622, 2546},
	"runtime/contain":             {55, 49},
	"runtime/container":           {8280, 5359},
	"runtime/containerd":          {190, 429},
	"runtime/cosign":              {303, 273},
	"runtime/embedded":            {2369, 1215},
	"runtime/health":              {368, 247},
	"runtime/image":               {5203, 4078},
	"runtime/kernel":              {120, 136},
	"runtime/limit":               {238, 183},
	"runtime/log":                 {1531, 888},
	"runtime/network":             {7296, 4561},
	"runtime/pemfile":             {64, 64},
	"runtime/pgp":                 {453, 274},
	"runtime/platform":            {28, 50},
	"runtime/port":                {29, 0},
	"runtime/registry":            {814, 982},
	"runtime/tree":                {513, 255},
	"store":                       {3783, 3965},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 903},
	"test/bench":                  {0, 2551},
	"test/boards":                 {0, 129},
	"test/compose":                {0, 1116},
	"test/containerdtest":         {0, 483},
	"test/cosigned":               {0, 208},
	"test/debimage":               {0, 355},
	"test/demo":                   {0, 1205},
	"test/demoapp":                {0, 579},
	"test/dockerregistry":         {0, 185},
	"test/e2e":                    {0, 4336},
	"test/faults":                 {0, 2535},
	"test/field":                  {0, 828},
	"test/gitserver":              {0, 259},
	"test/image":                  {0, 603},
	"test/isolated":               {0, 664},
	"test/leftovers":              {0, 297},
	"test/neighbours":             {0, 1468},
	"test/ociimage":               {0, 714},
	"test/openapi":                {0, 63},
	"test/openpgp":                {0, 96},
	"test/packages":               {0, 422},
	"test/pki":                    {0, 581},
	"test/plant":                  {0, 1202},
	"test/requirements":           {0, 563},
	"test/servicemanager":         {0, 47},
	"test/syscalls":               {0, 225},
	"test/upgrade":                {0, 556},
	"test/wfmsim":                 {0, 6536},
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
