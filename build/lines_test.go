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
	"agent":                       {9692, 8693},
	"agent/clock":                 {96, 95},
	"agent/control":               {2410, 1400},
	"agent/git":                   {1652, 1487},
	"agent/identity":              {1870, 2147},
	"agent/margo":                 {3083, 2241},
	"agent/metrics":               {245, 172},
	"agent/pace":                  {557, 722},
	"agent/uplink":                {1180, 1305},
	"agent/wfm":                   {1921, 2361},
	"build":                       {47, 794},
	"capability":                  {1453, 814},
	"cmd/command":                 {373, 0},
	"cmd/containerd-shim-runc-v2": {618, 527},
	"cmd/margolite":               {6914, 3853},
	"cmd/margolite-init":          {169, 148},
	"cmd/wfmsim":                  {996, 306},
	"packaging":                   {0, 78},
	"packaging/buildroot":         {0, 92},
	"packaging/image":             {87, 0},
	"packaging/manual":            {260, 65},
	"packaging/openwrt":           {0, 289},
	"packaging/sbom":              {148, 55},
	"policy":                      {1316, 753},
	"runtime":                     {4309, 3194},
	"runtime/compose":             {4744, 2275},
	"runtime/contain":             {52, 42},
	"runtime/container":           {6797, 3962},
	"runtime/containerd":          {177, 260},
	"runtime/cosign":              {310, 217},
	"runtime/embedded":            {2087, 1029},
	"runtime/fault":               {73, 0},
	"runtime/health":              {334, 234},
	"runtime/image":               {4156, 3219},
	"runtime/kernel":              {118, 115},
	"runtime/limit":               {316, 156},
	"runtime/log":                 {1266, 689},
	"runtime/network":             {6173, 3829},
	"runtime/notation":            {671, 444},
	"runtime/pemfile":             {64, 62},
	"runtime/pgp":                 {427, 254},
	"runtime/platform":            {26, 43},
	"runtime/port":                {48, 0},
	"runtime/registry":            {729, 838},
	"runtime/tree":                {589, 237},
	"store":                       {3331, 2756},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 849},
	"test/bench":                  {0, 2006},
	"test/boards":                 {0, 128},
	"test/compose":                {0, 1006},
	"test/containerdtest":         {0, 341},
	"test/cosigned":               {0, 198},
	"test/debimage":               {0, 328},
	"test/demo":                   {0, 882},
	"test/demoapp":                {0, 353},
	"test/dockerregistry":         {0, 51},
	"test/e2e":                    {0, 2211},
	"test/expect":                 {0, 133},
	"test/faults":                 {0, 2577},
	"test/field":                  {0, 727},
	"test/gitserver":              {0, 200},
	"test/image":                  {0, 521},
	"test/isolated":               {0, 694},
	"test/leftovers":              {0, 295},
	"test/neighbours":             {0, 1353},
	"test/notarized":              {0, 121},
	"test/ociimage":               {0, 660},
	"test/openapi":                {0, 47},
	"test/openpgp":                {0, 90},
	"test/packages":               {0, 345},
	"test/pki":                    {0, 494},
	"test/plant":                  {0, 1366},
	"test/requirements":           {0, 397},
	"test/servicemanager":         {0, 43},
	"test/syscalls":               {0, 211},
	"test/upgrade":                {0, 383},
	"test/wfmsim":                 {0, 4836},
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
