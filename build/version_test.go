package build

import (
	"testing"
	gotime "time"
)

func TestTimeIsThatOfTheCommit(t *testing.T) {
	defer func(before string) { time = before }(time)
	least := gotime.Date(2026, gotime.January, 1, 0, 0, 0, 0, gotime.UTC)
	for stamp, want := range map[string]gotime.Time{
		"":           least,
		"now":        least,
		"-1":         least,
		"1":          least, // what reproducible builds without a date have
		"1777636800": gotime.Date(2026, gotime.May, 1, 12, 0, 0, 0, gotime.UTC),
	} {
		time = stamp
		if got := Time(); !got.Equal(want) {
			t.Errorf("Time() of stamp %q = %s, want %s", stamp, got, want)
		}
	}
}
