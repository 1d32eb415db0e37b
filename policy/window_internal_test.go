package policy

import (
	"errors"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

// A device without a time zone database is told so, and can use UTC.
func TestMissingZoneDatabaseIsNamed(t *testing.T) {
	without := func(name string) (*time.Location, error) {
		if name == "UTC" {
			return time.UTC, nil
		}
		return nil, errors.New("unknown time zone " + name)
	}
	expect.ErrorWith(t, expect.ErrorOf(parseWindow("01:00-02:00 Europe/Berlin", nil, without)), "no time zone database", "error")
	for _, text := range []string{"01:00-02:00", "01:00-02:00 UTC"} {
		expect.Error(t, expect.ErrorOf(parseWindow(text, nil, without)), nil, "%s", text)
	}
}
