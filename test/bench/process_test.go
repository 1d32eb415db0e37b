package main

import (
	"os"
	"testing"
	"time"
)

func TestMemoryOfAProcessIsMeasured(t *testing.T) {
	before, err := memoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if before.RSS < before.PSS || before.PSS < before.Anonymous || before.Anonymous == 0 {
		t.Errorf("memory is %+v, want resident >= proportional >= anonymous > 0", before)
	}
	const more = 64 << 20
	held := make([]byte, more)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	after, err := memoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.Anonymous - before.Anonymous; grown < more/2 {
		t.Errorf("anonymous memory grew by %d bytes, %d are held", grown, len(held))
	}
}

func TestProcessorTimeIsMeasured(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < 20*time.Millisecond; {
	}
	after, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("processor time went from %s to %s", before, after)
	}
}

func TestProcessThatIsGoneIsAnError(t *testing.T) {
	const nobody = 1 << 22 // ids are below
	if _, err := memoryOf(nobody); err == nil {
		t.Error("its memory was measured")
	}
	if _, err := writtenBy(nobody); err == nil {
		t.Error("its writes were measured")
	}
	if _, err := cpuOf(nobody); err == nil {
		t.Error("its processor time was measured")
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, c := range []struct {
		values []int64
		want   int64
	}{
		{[]int64{7}, 7},
		{[]int64{9, 1, 5}, 5},
		{[]int64{4, 3, 2, 1}, 3},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %d, want %d", c.values, got, c.want)
		}
	}
}
