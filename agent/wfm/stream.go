package wfm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// maxPieces bounds the requests for one artifact: transfers break off, and ranges may be short.
const maxPieces = 32

var errRange = errors.New("the answer is not the requested range")

// errPieces: too many parts; what arrived is kept.
var errPieces = errors.New("it arrives in too many parts")

// receive brings an artifact into the spool, resuming the last attempt. nil: it is complete and
// has its digest. With another error what arrived stays unless it is useless.
func (c *Client) receive(ctx context.Context, r request, p *part) error {
	if p.size > 0 && p.matches() {
		return nil // it was complete before a restart
	}
	for requests := 1; ; requests++ {
		before := p.size
		status, more, err := c.receivePiece(ctx, r, p)
		grown, fresh := p.size > before, before == 0 || status == http.StatusOK
		beyond := !fresh && statusOf(err) == http.StatusRequestedRangeNotSatisfiable
		switch {
		case errors.Is(err, ErrTooLarge), errors.Is(err, errSpool), fresh && errors.Is(err, errRange):
			return errors.Join(err, p.restart())
		case p.same(), (err == nil || beyond) && p.matches():
			return nil // even if more was announced
		case grown && (err == nil && more || errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil):
			// Request the rest.
		case err == nil && fresh:
			return errors.Join(fmt.Errorf("cannot %s: %w", r.op, ErrDigestMismatch), p.restart())
		case err == nil, errors.Is(err, errRange), beyond:
			// What was there before is not its beginning, or the server is confused.
			if err = p.restart(); err != nil {
				return fmt.Errorf("cannot %s: %w", r.op, err)
			}
		default:
			return err
		}
		if requests == maxPieces {
			return &connectionError{r.op, cmp.Or(err, errPieces)}
		}
	}
}

// receivePiece makes one request for what is missing; the digest of the whole says whether it
// fits (DS-25). more: the server says that there is more than it sent.
func (c *Client) receivePiece(ctx context.Context, r request, p *part) (status int, more bool, err error) {
	r.header = r.header.Clone()
	if p.size > 0 {
		r.header.Set("Range", "bytes="+strconv.FormatInt(p.size, 10)+"-")
	}
	r.sink = func(response *http.Response, body io.Reader) error {
		status = response.StatusCode
		switch status {
		case http.StatusPartialContent:
			first, last, total, ok := parseContentRange(response.Header.Get("Content-Range"))
			if !ok || first != p.size {
				return fmt.Errorf("%w: Content-Range %.100q", errRange, response.Header.Get("Content-Range"))
			}
			if total > p.limit {
				return ErrTooLarge
			}
			more = total < 0 || last+1 < total
		default: // all of it, from the start
			if err := p.restart(); err != nil {
				return err
			}
		}
		if response.ContentLength > p.limit-p.size {
			return ErrTooLarge
		}
		// A server that drips must not hold the device up for as long as the largest artifact may
		// take: what counts is the average since the body began.
		began, received := time.Now(), int64(0)
		return p.receive(noted{body, func(n int, err error) error {
			received += int64(n)
			if err == nil && time.Since(began) > c.options.Limits.deadline(c.options.Timeout, received) {
				err = errSlow
			}
			return err
		}})
	}
	_, err = c.do(ctx, r)
	return status, more, err
}

var contentRange = regexp.MustCompile(`(?i)^\s*bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\s*$`)

// parseContentRange reads a Content-Range header; total is -1 if the server does not know it.
func parseContentRange(value string) (first, last, total int64, ok bool) {
	parts := contentRange.FindStringSubmatch(value)
	if parts == nil {
		return 0, 0, 0, false
	}
	number := func(digits string) int64 {
		n, _ := strconv.ParseInt(digits, 10, 64) // there are 1 to 18
		return n
	}
	first, last, total = number(parts[1]), number(parts[2]), -1
	if parts[3] != "*" {
		total = number(parts[3])
	}
	return first, last, total, first <= last && (total < 0 || last < total)
}
