package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// counter gives out numbers, each once. A number is on the medium before it is
// given out, so that none comes twice, also after a power cut.
type counter struct {
	file string

	mu    sync.Mutex
	count uint64
}

func openCounter(file string) (*counter, error) {
	c := &counter{file: file}
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read count: %w", err)
	}
	c.count, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read count in %s: %w", file, err)
	}
	slog.Info("count found", "count", c.count)
	return c, nil
}

func (c *counter) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/next", func(w http.ResponseWriter, _ *http.Request) {
		n, err := c.next()
		if err != nil {
			slog.Error("cannot count", "error", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, n)
	})
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return mux
}

func (c *counter) next() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := replace(c.file, strconv.FormatUint(c.count+1, 10)+"\n"); err != nil {
		return 0, fmt.Errorf("cannot keep count: %w", err)
	}
	c.count++
	return c.count, nil
}

// replace writes a file so that after a power cut there is the old one or the
// new one: new file, fsync, rename, fsync of the directory.
func replace(file, text string) error {
	f, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
