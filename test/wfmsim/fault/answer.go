package fault

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// answer is what a handler would have answered.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

// replace sends an honest answer with a body that is not.
func (w *writer) replace(honest *answer, f Fault) {
	status := cmp.Or(honest.status, http.StatusOK)
	header := w.Header()
	for name, values := range honest.header {
		header[name] = values
	}
	if status < 200 || status > 299 {
		w.WriteHeader(status)
		_, _ = w.Write(honest.body.Bytes())
		return
	}
	switch f.Kind {
	case Length:
		w.raw(status, f.Bytes, honest.body.Bytes())
	case Endless:
		header.Del("Content-Length")
		w.WriteHeader(status)
		_, err := w.Write(honest.body.Bytes())
		spaces := bytes.Repeat([]byte(" "), 64<<10)
		for left := f.Bytes - w.sent; err == nil && (f.Bytes == 0 || left > 0); left = f.Bytes - w.sent {
			piece := spaces
			if f.Bytes > 0 {
				piece = spaces[:min(left, int64(len(spaces)))]
			}
			_, err = w.Write(piece)
		}
	case Bomb:
		header.Del("Content-Length")
		header.Set("Content-Encoding", "gzip")
		w.WriteHeader(status)
		_ = WriteBomb(w, cmp.Or(f.Bytes, defaultBomb)) // until the client has enough
	}
}

// defaultBomb is what a bomb expands to that was not given a size.
const defaultBomb = 1 << 30

// WriteBomb writes a gzip stream that expands to n zero bytes, in members of
// which each is a thousandth of what comes out of it.
func WriteBomb(w io.Writer, n int64) error {
	const member = 1 << 20 // packed twice, and repeated: a busy machine is not late with it
	pack := func(n int64) ([]byte, error) {
		var packed bytes.Buffer
		zw := gzip.NewWriter(&packed)
		if _, err := zw.Write(make([]byte, n)); err != nil {
			return nil, err
		}
		err := zw.Close()
		return packed.Bytes(), err
	}
	full, err := pack(min(n, member))
	for ; err == nil && n > member; n -= member {
		_, err = w.Write(full)
	}
	if err != nil {
		return err
	}
	last, err := pack(n)
	if err != nil {
		return err
	}
	_, err = w.Write(last)
	return err
}

// raw writes an answer past net/http, which would not let a wrong length pass.
func (w *writer) raw(status int, length int64, body []byte) {
	w.bendHeader()
	header := w.to.Header().Clone()
	header.Set("Content-Length", strconv.FormatInt(length, 10))
	header.Set("Connection", "close")
	if _, set := header["Date"]; !set {
		header.Set("Date", w.now().UTC().Format(http.TimeFormat))
	}
	connection, _, err := http.NewResponseController(w.to).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer connection.Close()
	var out bytes.Buffer
	fmt.Fprintf(&out, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = header.Write(&out) // into memory
	out.WriteString("\r\n")
	out.Write(body)
	_, _ = connection.Write(out.Bytes())
}

// redirect sends the client elsewhere.
func (w *writer) redirect(f Fault) {
	w.Header().Set("Location", f.Value)
	w.WriteHeader(cmp.Or(f.Status, http.StatusFound))
}

// page is what a captive portal or a misled proxy answers.
func (w *writer) page(f Fault) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(f.Status, http.StatusOK))
	_, _ = io.WriteString(w, "<!doctype html>\n<html><head><title>Welcome</title></head>"+
		"<body><h1>Log in to use this network</h1></body></html>\n")
}

// reset ends the connection without a goodbye.
func (w *writer) reset() {
	connection, _, err := http.NewResponseController(w.to).Hijack()
	if err == nil {
		below := connection
		if secured, ok := connection.(*tls.Conn); ok {
			below = secured.NetConn()
		}
		if tcp, ok := below.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // what is not a TCP connection can only be closed
		}
		_ = below.Close()
	}
	panic(http.ErrAbortHandler)
}
