package compose

import (
	"maps"
	"slices"
)

// maxTypo bounds the keys that are looked at for a slip of the pen.
const maxTypo = 32 // bytes

// meant asks about the key that somebody may have wanted to write: the one that
// differs from what is written in the fewest letters, if in a few only.
func meant(written string, known map[string]shape) string {
	if len(written) > maxTypo {
		return ""
	}
	best, least := "", min(2, len(written)/3)+1
	for _, key := range slices.Sorted(maps.Keys(known)) {
		if d := distance(written, key); d < least {
			best, least = key, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is how many letters have to be added, taken away, replaced or swapped
// with the next one to make b of a.
func distance(a, b string) int {
	before, above := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			changed := above[j]
			if a[i] != b[j] {
				changed++
			}
			row[j+1] = min(above[j+1]+1, row[j]+1, changed)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above = above, row
	}
	return above[len(b)]
}
