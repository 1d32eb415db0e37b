package main

import (
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestTheProgramIsFoundInMemory(t *testing.T) {
	const maps = `00400000-00ecf000 r-xp 00000000 fe:00 10027078                           /usr/bin/margolite (deleted)
00ecf000-019dd000 r--p 00acf000 fe:00 10027078                           /usr/bin/margolite (deleted)
019dd000-01a73000 rw-p 015dd000 fe:00 10027078                           /usr/bin/margolite (deleted)
01a73000-01d93000 rw-p 00000000 00:00 0
40000000-40800000 rw-p 00000000 00:00 0
75c3a000-75c42000 r--s 00000000 fe:00 10027079                   /var/lib/margolite/margolite.db
75c5b000-75c63000 r--p 00000000 fe:01 10027078                   /of/another/device
77ffb000-77fff000 r--p 00000000 00:00 0                          [vvar]
77fff000-78001000 r-xp 00000000 00:00 0                          [vdso]
`
	want := []span{{0x400000, 0xecf000}, {0xecf000, 0x19dd000}}
	expect.Equal(t, spansOf(maps, "/usr/bin/margolite (deleted)"), want, "spans")
}

func TestGivingBackLeavesTheProgramAsItIs(t *testing.T) {
	program := expect.Value(programSpans())(t)
	expect.Require(t, len(program) != 0, "the program is not in memory")
	(&thrift{program: program}).giveBack()
	expect.Equal(t, expect.Value(programSpans())(t), program, "spans then") // it runs
}

func TestMemoryLimitFollowsTheMachine(t *testing.T) {
	for memory, want := range map[uint64]int64{
		32 << 20: 24 << 20, 64 << 20: 24 << 20, 128 << 20: 32 << 20, 256 << 20: 64 << 20, 1 << 63: 1 << 61,
	} {
		expect.Equal(t, memoryLimit(memory), want, "of %d bytes it takes", memory)
	}
}
