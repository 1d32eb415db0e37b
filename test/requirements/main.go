// Command requirements writes test/requirements.md: each requirement of the
// Margo specification to the client on a device with the tests that show it, or
// with the reason why there is none.
//
//	go run ./test/requirements
//
// Tests name what they show: a function as in TestDS06VersionMustIncrease, of
// several as in TestAD06AD13ComponentsInOrder, or a subtest whose name begins
// with ids, as in t.Run("ST-12 ST-13 while applying", ...) or as a name in the
// table that t.Run goes through. Tests of the simulated WFM do not count. The
// requirements are in requirements.yaml.
//
// The tests of this package fail where the table and the tests of the module do
// not agree, so that nothing else has to be run to keep them together.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// tableFile is what is written, from the root of the module.
const tableFile = "test/requirements.md"

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "requirements:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	all, err := load(definitions)
	if err != nil {
		return err
	}
	shown, err := scan(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, tableFile), table(all, shown), 0o644); err != nil {
		return fmt.Errorf("cannot write the table: %w", err)
	}
	for _, problem := range problems(all, shown) {
		fmt.Fprintln(os.Stderr, problem)
	}
	return nil
}
