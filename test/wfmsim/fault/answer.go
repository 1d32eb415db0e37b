package fault

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
)

// replace sends an honest answer with a body that is not.
func (w *writer) replace(honest *httptest.ResponseRecorder, f Fault) {
	status, body := honest.Code, honest.Body.Bytes()
	header := w.Header()
	maps.Copy(header, honest.Header())
	if status < 200 || status > 299 {
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return
	}
	switch f.Kind {
	case Endless:
		header.Del("Content-Length")
		w.WriteHeader(status)
		_, err := w.Write(body)
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
		_ = writeBomb(w, cmp.Or(f.Bytes, defaultBomb)) // until the client has enough
	}
}

// defaultBomb is what a bomb expands to that was not given a size.
const defaultBomb = 1 << 30

// writeBomb writes a gzip stream that expands to n zero bytes, in members of
// which each is a thousandth of what comes out of it.
func writeBomb(w io.Writer, n int64) error {
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
