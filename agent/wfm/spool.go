package wfm

import (
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
)

// Spool keeps artifacts as far as they have arrived, outside of memory, by their final digest.
// What it gives back may differ from what was written, for example after a power cut: the digest
// decides. One artifact is used by one caller at a time.
type Spool interface {
	// Size is how many bytes have arrived, 0 if none.
	Size(d digest.Digest) (int64, error)
	// Open reads them from the beginning.
	Open(d digest.Digest) (io.ReadCloser, error)
	// Append adds to them, or begins.
	Append(d digest.Digest) (io.WriteCloser, error)
	// Remove drops them, if there are any.
	Remove(d digest.Digest) error
}

var errSpool = errors.New("cannot store the download")

// part is an artifact on its way into the spool.
type part struct {
	spool  Spool
	digest digest.Digest
	limit  int64           // of the artifact's size
	size   int64           // of what has arrived
	hash   digest.Verifier // of what has arrived
	buffer []byte

	// encoded: the artifact is what these bytes expand to.
	encoded bool
}

const copyBuffer = 32 << 10

// openPart resumes an artifact, of which it hashes what has arrived.
func openPart(spool Spool, d digest.Digest, limit int64) (*part, error) {
	p := &part{spool: spool, digest: d, limit: limit, hash: d.Verifier(), buffer: make([]byte, copyBuffer)}
	size, err := spool.Size(d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSpool, err)
	}
	if size == 0 {
		return p, nil
	}
	p.size, err = p.read(p.hash)
	if err != nil || p.size > limit {
		return p, p.restart() // it is useless
	}
	return p, nil
}

func (p *part) read(to io.Writer) (int64, error) {
	r, err := p.open()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.CopyBuffer(to, io.LimitReader(r, p.limit+1), p.buffer)
}

func (p *part) restart() error {
	p.size, p.encoded, p.hash = 0, false, p.digest.Verifier()
	if err := p.spool.Remove(p.digest); err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	return nil
}

// receive appends a body. Its errors are ErrTooLarge, errSpool and those of the body.
func (p *part) receive(body io.Reader) error {
	w, err := p.spool.Append(p.digest)
	if err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	var ended error // the body
	n, err := io.CopyBuffer(io.MultiWriter(w, p.hash), noted{limited(body, p.limit-p.size), func(_ int, err error) error {
		ended = err
		return err
	}}, p.buffer)
	p.size += n
	closeErr := w.Close()
	if err == nil {
		err = closeErr
	}
	if err != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", errSpool, err)
	}
	return err
}

// matches says whether the artifact is complete, expanded if it is compressed.
func (p *part) matches() bool {
	if p.encoded = !p.same(); !p.encoded {
		return true
	}
	expanded := p.digest.Verifier()
	_, err := p.read(expanded)
	p.encoded = err == nil && expanded.Verified()
	return p.encoded
}

// same says that the bytes as received are the artifact.
func (p *part) same() bool { return p.hash.Verified() }

func (p *part) open() (io.ReadCloser, error) {
	r, err := p.spool.Open(p.digest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSpool, err)
	}
	if !p.encoded {
		return r, nil
	}
	expanded, err := expand(r, p.limit)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{expanded, r}, nil
}
