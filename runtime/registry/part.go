package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/distribution/reference"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// fruitless is how often a download that broke off is continued while less than Enough has come.
	fruitless = 3
	// Enough is how many bytes a download has to bring between two interruptions to count as making progress.
	Enough = 16 << 10
)

// Open reads a part of an image from an offset on: a manifest or an index, by its media type, else a blob. What breaks
// off is gone on with where it was; it ends with io.EOF only when all of it has come, and with an ErrContent when there
// is more or less than the descriptor says. An ErrRange says that it can be had from the beginning only. Other errors
// are those of Resolve.
func (c *Client) Open(ctx context.Context, in reference.Named, desc v1.Descriptor, offset int64) (io.ReadCloser, error) {
	if offset < 0 || offset > desc.Size {
		return nil, fmt.Errorf("%w: byte %d of one with %d", ErrContent, offset, desc.Size)
	}
	path, accept := "blobs/", "*/*"
	if IsManifest(desc.MediaType) || IsIndex(desc.MediaType) {
		path, accept = "manifests/", desc.MediaType+", */*"
	}
	p := &part{ctx: ctx, client: c, request: c.request(http.MethodGet, in, path+desc.Digest.String(), accept), size: desc.Size, offset: offset, mark: offset}
	if err := p.open(); err != nil {
		return nil, err
	}
	return p, nil
}

// WithSkipped is a context whose calls of Open add to bytes, as they come, those that are read and thrown away: some
// registries send all of a part, whatever range is asked for.
func WithSkipped(ctx context.Context, bytes *atomic.Int64) context.Context {
	return context.WithValue(ctx, skippedKey{}, bytes)
}

type skippedKey struct{}

// skipped takes the bytes that are thrown away.
func skipped(ctx context.Context) io.Writer {
	if bytes, ok := ctx.Value(skippedKey{}).(*atomic.Int64); ok {
		return counter{bytes}
	}
	return io.Discard
}

type counter struct{ bytes *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return len(p), nil
}

// part is a download.
type part struct {
	ctx    context.Context // of all of its requests
	client *Client
	*request
	size, offset int64
	body         io.ReadCloser // nil: there is no more to come
	mark         int64         // the offset up to which enough has come
	vain         int           // how often it broke off since
}

// open asks for what is missing.
func (p *part) open() error {
	if p.offset == p.size {
		return nil
	}
	p.header.Del("Range")
	if p.offset > 0 {
		p.header.Set("Range", "bytes="+strconv.FormatInt(p.offset, 10)+"-")
	}
	answer, err := p.client.do(p.ctx, p.request)
	if err != nil {
		return err
	}
	if err := p.reach(answer); err != nil {
		answer.Body.Close()
		return err
	}
	p.body = answer.Body
	return nil
}

// reach brings an answer to where it is to be read from.
func (p *part) reach(answer *http.Response) error {
	if answer.StatusCode == http.StatusPartialContent {
		// It may be a piece of what was asked for; whatever is too much of it is noticed by Read.
		if span := answer.Header.Get("Content-Range"); !startsAt(span, p.offset, p.size) {
			return fmt.Errorf("asked for bytes from %d on, it sent %.80q: %w", p.offset, span, ErrRange)
		}
		return nil
	}
	if n := answer.ContentLength; n >= 0 && n != p.size {
		return fmt.Errorf("%w: it has %d bytes and not %d", ErrContent, n, p.size)
	}
	// It sends all of it, whatever was asked for.
	if _, err := io.CopyN(skipped(p.ctx), answer.Body, p.offset); err != nil {
		return fmt.Errorf("cannot get to byte %d: %w", p.offset, err)
	}
	return nil
}

// startsAt reads a Content-Range (RFC 9110, section 14.4) and says whether it is from a byte on of so many.
func startsAt(field string, offset, size int64) bool {
	rest, ok := strings.CutPrefix(field, "bytes "+strconv.FormatInt(offset, 10)+"-")
	_, total, found := strings.Cut(rest, "/")
	return ok && found && (total == "*" || total == strconv.FormatInt(size, 10))
}

func (p *part) Read(b []byte) (int, error) {
	for {
		if p.body == nil {
			return 0, io.EOF
		}
		rest := p.size - p.offset
		n, err := p.body.Read(b[:min(int64(len(b)), rest+1)])
		if int64(n) > rest {
			return 0, fmt.Errorf("%w: it has more than %d bytes", ErrContent, p.size)
		}
		p.offset += int64(n)
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF && p.offset == p.size:
			return n, err
		case err == io.EOF: // its length was not known, or it was a piece
			err = io.ErrUnexpectedEOF
		case !isBroken(err):
			return n, err
		}
		if err := p.goOn(err); err != nil || n > 0 {
			return n, err
		}
	}
}

// goOn asks for the rest after a download broke off.
func (p *part) goOn(why error) error {
	if p.offset-p.mark >= Enough {
		p.vain, p.mark = 0, p.offset
	} else {
		p.vain++
	}
	if p.vain > fruitless || p.ctx.Err() != nil {
		return why
	}
	_ = p.Close() // broken as it is
	if err := p.open(); err != nil {
		return fmt.Errorf("%w after %d of %d bytes, and could not go on: %v", why, p.offset, p.size, err)
	}
	return nil
}

// Close ends a download.
func (p *part) Close() error {
	if p.body == nil {
		return nil
	}
	err := p.body.Close()
	p.body = nil
	return err
}
