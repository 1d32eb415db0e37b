package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/store"
)

// foreign is a database of somebody else, after so many transactions, as bytes.
func foreign(t testing.TB, o bolt.Options, transactions int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign.db")
	db := must[*bolt.DB](t)(bolt.Open(path, 0o600, &o))
	db.NoSync = true
	for n := range transactions {
		check(t, db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("v1"))
			if err != nil {
				return err
			}
			for i := range 20 {
				deep, err := b.CreateBucketIfNotExists(fmt.Appendf(nil, "namespace %d", (n+i)%40))
				if err != nil {
					return err
				}
				if err := deep.Put(fmt.Appendf(nil, "key %d", n), bytes.Repeat([]byte{byte(n)}, 100)); err != nil {
					return err
				}
			}
			return b.Put([]byte("transactions"), []byte{byte(n + 1)})
		}))
	}
	check(t, db.Close())
	return must[[]byte](t)(os.ReadFile(path))
}

// transactions is what a database says of itself, read to its end and written once
// more. Where bbolt meets damage it ends the test's process.
func transactions(t testing.TB, path string) (n int) {
	t.Helper()
	db := must[*bolt.DB](t)(bolt.Open(path, 0o600, nil))
	defer db.Close()
	db.NoSync = true
	check(t, db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("v1"))
		if b == nil {
			return nil
		}
		if value := b.Get([]byte("transactions")); len(value) == 1 {
			n = int(value[0])
		}
		var read func(b *bolt.Bucket) error
		read = func(b *bolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				if value == nil {
					if in := b.Bucket(key); in != nil {
						return read(in)
					}
				}
				return nil
			})
		}
		return errors.Join(read(b), b.Put([]byte("written"), []byte("again")))
	}))
	return n
}

// page is one of a database whose pages have this size.
func page(data []byte, size int, id uint64) []byte { return data[int(id)*size:][:size] }

// metas are what the meta pages say, the newer first.
func metas(data []byte, size int) (newer, older []byte) {
	newer, older = page(data, size, 0)[16:], page(data, size, 1)[16:]
	if binary.NativeEndian.Uint64(older[48:]) > binary.NativeEndian.Uint64(newer[48:]) {
		newer, older = older, newer
	}
	return newer, older
}

func rootOf(data []byte, size int, meta []byte) []byte {
	return page(data, size, binary.NativeEndian.Uint64(meta[16:]))
}

func TestADatabaseOfOthersLosesNoMoreThanItsLastTransaction(t *testing.T) {
	const all = 30
	for _, c := range []struct {
		name   string
		damage func(data []byte, size int)
		length int // of what is left of the file, in pages; 0: all
		left   int // transactions; 0: none
		mended bool
	}{
		{name: "whole", left: all},
		{name: "newest root rots", left: all - 1, mended: true, damage: func(data []byte, size int) {
			newer, _ := metas(data, size)
			rootOf(data, size, newer)[8] ^= 0x40
		}},
		{name: "newest root is lost", left: all - 1, mended: true, damage: func(data []byte, size int) {
			newer, _ := metas(data, size)
			clear(rootOf(data, size, newer))
		}},
		{name: "newest root has a key of no bytes", left: all - 1, mended: true, damage: func(data []byte, size int) {
			newer, _ := metas(data, size)
			root := rootOf(data, size, newer)
			key := binary.NativeEndian.Uint32(root[24:])
			binary.NativeEndian.PutUint32(root[20:], binary.NativeEndian.Uint32(root[20:])+key)
			binary.NativeEndian.PutUint32(root[24:], 0)
		}},
		{name: "newest meta page rots", left: all - 1, damage: func(data []byte, size int) {
			newer, _ := metas(data, size)
			newer[50] ^= 1
		}},
		{name: "older meta page rots", left: all, damage: func(data []byte, size int) {
			_, older := metas(data, size)
			older[50] ^= 1
		}},
		{name: "both meta pages rot", damage: func(data []byte, size int) {
			newer, older := metas(data, size)
			newer[50] ^= 1
			older[50] ^= 1
		}},
		{name: "older meta page and newest root rot", damage: func(data []byte, size int) {
			newer, older := metas(data, size)
			rootOf(data, size, newer)[8] ^= 0x40
			older[50] ^= 1
		}},
		{name: "both roots rot", damage: func(data []byte, size int) {
			newer, older := metas(data, size)
			rootOf(data, size, newer)[10] ^= 0x80
			rootOf(data, size, older)[10] ^= 0x80
		}},
		{name: "cut off", length: 3},
		{name: "cut off within the meta pages", length: 1},
	} {
		for _, size := range []int{1024, 4096, 16384} {
			t.Run(fmt.Sprintf("%s, pages of %d", c.name, size), func(t *testing.T) {
				for _, o := range []bolt.Options{{PageSize: size}, {PageSize: size, NoFreelistSync: true}} {
					data := foreign(t, o, all)
					if c.damage != nil {
						c.damage(data, size)
					}
					if c.length > 0 {
						data = data[:c.length*size]
					}
					path := filepath.Join(t.TempDir(), "foreign.db")
					check(t, os.WriteFile(path, data, 0o600))
					mended, err := store.MendBolt(path)
					if c.left == 0 {
						if !errors.Is(err, store.ErrCorrupt) {
							t.Errorf("it is mended: %v", err)
						}
						if !bytes.Equal(data, must[[]byte](t)(os.ReadFile(path))) {
							t.Error("what could not be mended is changed")
						}
						continue
					}
					if err != nil || (mended != "") != c.mended {
						t.Errorf("mended: %q, %v", mended, err)
					}
					if !c.mended && !bytes.Equal(data, must[[]byte](t)(os.ReadFile(path))) {
						t.Error("what is whole is changed")
					}
					if mended, err := store.MendBolt(path); mended != "" || err != nil {
						t.Errorf("it is mended again: %q, %v", mended, err)
					}
					if n := transactions(t, path); n != c.left {
						t.Errorf("it has %d transactions, want %d", n, c.left)
					}
				}
			})
		}
	}
}

// A list of free pages that is damaged, or names pages in use, costs nothing.
func TestTheListOfFreePagesIsMadeAnew(t *testing.T) {
	const all = 30
	for name, damage := range map[string]func(list, root []byte){
		"it is no list":                func(list, _ []byte) { list[8] ^= 0x40 },
		"it is longer than its page":   func(list, _ []byte) { binary.NativeEndian.PutUint16(list[10:], 0xFFF0) },
		"it names pages twice":         func(list, _ []byte) { copy(list[24:], list[16:24]) },
		"it names pages beyond":        func(list, _ []byte) { list[22] = 1 },
		"it names a page that is used": func(list, root []byte) { copy(list[16:], root[:8]) },
	} {
		t.Run(name, func(t *testing.T) {
			data := foreign(t, bolt.Options{PageSize: pageSize}, all)
			newer, _ := metas(data, pageSize)
			damage(page(data, pageSize, binary.NativeEndian.Uint64(newer[32:])), rootOf(data, pageSize, newer))
			path := filepath.Join(t.TempDir(), "foreign.db")
			check(t, os.WriteFile(path, data, 0o600))
			if mended, err := store.MendBolt(path); mended == "" || err != nil {
				t.Errorf("mended: %q, %v", mended, err)
			}
			if n := transactions(t, path); n != all {
				t.Errorf("it has %d transactions, want %d", n, all)
			}
		})
	}
}

func TestADatabaseThatIsOpenIsNotMended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "foreign.db")
	db := must[*bolt.DB](t)(bolt.Open(path, 0o600, nil))
	defer db.Close()
	if _, err := store.MendBolt(path); !errors.Is(err, store.ErrLocked) {
		t.Errorf("it fails with %v", err)
	}
	if _, err := store.MendBolt(t.TempDir()); err == nil || errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a directory fails with %v", err)
	}
}

// Whatever rots, what passes can be opened, read to its end and written.
func TestRotIsFoundBeforeBboltMeetsIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, o := range []bolt.Options{{PageSize: pageSize}, {PageSize: pageSize, NoFreelistSync: true}} {
		whole := foreign(t, o, 12)
		path := filepath.Join(t.TempDir(), "foreign.db")
		for range 100 {
			data := bytes.Clone(whole)
			for range 1 + random.IntN(4) {
				at := random.IntN(len(data)/pageSize)*pageSize + random.IntN(512)
				data[at] ^= 1 << random.IntN(8)
			}
			mendThenOpen(t, path, data)
		}
	}
}

func mendThenOpen(t testing.TB, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
	_, err := store.MendBolt(path)
	if errors.Is(err, store.ErrCorrupt) {
		return
	}
	check(t, err)
	if n := transactions(t, path); n > 255 {
		t.Errorf("it has %d transactions", n)
	}
}

func FuzzMendBolt(f *testing.F) {
	for _, o := range []bolt.Options{{PageSize: 1024}, {PageSize: 1024, NoFreelistSync: true}} {
		whole := foreign(f, o, 3)
		f.Add(whole)
		f.Add(whole[:len(whole)/2])
		for at := 8; at < len(whole); at += 1024 {
			rotten := bytes.Clone(whole)
			rotten[at] ^= 1
			f.Add(rotten)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		mendThenOpen(t, filepath.Join(t.TempDir(), "foreign.db"), data)
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
