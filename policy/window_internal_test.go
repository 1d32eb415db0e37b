package policy

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A device without a time zone database is told so, and can use UTC.
func TestMissingZoneDatabaseIsNamed(t *testing.T) {
	without := func(name string) (*time.Location, error) {
		if name == "UTC" {
			return time.UTC, nil
		}
		return nil, errors.New("unknown time zone " + name)
	}
	if _, err := parseWindow("01:00-02:00 Europe/Berlin", nil, without); err == nil || !strings.Contains(err.Error(), "no time zone database") {
		t.Errorf("error is %v", err)
	}
	for _, text := range []string{"01:00-02:00", "01:00-02:00 UTC"} {
		if _, err := parseWindow(text, nil, without); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
