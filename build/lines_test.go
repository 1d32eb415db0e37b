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
	"agent":                       {10401, 9277},
	"agent/clock":                 {105, 113},
	"agent/control":               {2532, 1604},
	"agent/git":                   {1781, 1575},
	"agent/identity":              {1994, 2413},
	"agent/margo":                 {3345, 2483},
	"agent/metrics":               {259, 178},
	"agent/pace":                  {583, 760},
	"agent/uplink":                {1264, 1455},
	"agent/wfm":                   {2212, 2728},
	"build":                       {47, 826},
	"capability":                  {1509, 832},
	"cmd/command":                 {376, 0},
	"cmd/containerd-shim-runc-v2": {621, 552},
	"cmd/margolite":               {7235, 4205},
	"cmd/margolite-init":          {170, 172},
	"cmd/wfmsim":                  {1021, 344},
	"packaging":                   {0, 106},
	"packaging/buildroot":         {0, 98},
	"packaging/image":             {87, 0},
	"packaging/manual":            {260, 68},
	"packaging/openwrt":           {0, 310},
	"packaging/sbom":              {148, 61},
	"policy":                      {1365, 835},
	"runtime":                     {4490, 3342},
	"runtime/compose":             {4869, 2368},
	"runtime/contain":             {55, 46},
	"runtime/container":           {7050, 4088},
	"runtime/containerd":          {190, 293},
	"runtime/cosign":              {313, 251},
	"runtime/embedded":            {2247, 1072},
	"runtime/fault":               {57, 0},
	"runtime/health":              {350, 244},
	"runtime/image":               {4263, 3332},
	"runtime/kernel":              {120, 131},
	"runtime/limit":               {304, 179},
	"runtime/log":                 {1307, 730},
	"runtime/network":             {6455, 3950},
	"runtime/notation":            {680, 458},
	"runtime/pemfile":             {64, 64},
	"runtime/pgp":                 {443, 272},
	"runtime/platform":            {28, 50},
	"runtime/port":                {50, 0},
	"runtime/registry":            {738, 893},
	"runtime/tree":                {555, 241},
	"store":                       {3568, 3084},
	"test/apps":                   {0, 108},
	"test/arm":                    {0, 878},
	"test/bench":                  {0, 2015},
	"test/boards":                 {0, 129},
	"test/compose":                {0, 1022},
	"test/containerdtest":         {0, 366},
	"test/cosigned":               {0, 199},
	"test/debimage":               {0, 328},
	"test/demo":                   {0, 894},
	"test/demoapp":                {0, 353},
	"test/dockerregistry":         {0, 59},
	"test/e2e":                    {0, 2361},
	"test/expect":                 {0, 97},
	"test/faults":                 {0, 2604},
	"test/field":                  {0, 772},
	"test/gitserver":              {0, 200},
	"test/image":                  {0, 527},
	"test/isolated":               {0, 725},
	"test/leftovers":              {0, 297},
	"test/neighbours":             {0, 1401},
	"test/notarized":              {0, 121},
	"test/ociimage":               {0, 681},
	"test/openapi":                {0, 63},
	"test/openpgp":                {0, 96},
	"test/packages":               {0, 364},
	"test/pki":                    {0, 477},
	"test/plant":                  {0, 1284},
	"test/requirements":           {0, 442},
	"test/servicemanager":         {0, 47},
	"test/syscalls":               {0, 225},
	"test/upgrade":                {0, 426},
	"test/wfmsim":                 {0, 4830},
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
