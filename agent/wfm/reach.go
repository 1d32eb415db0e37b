package wfm

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// refusalTime is the least wait for a server to refuse the device's certificate, which it does
// after the handshake has succeeded here.
const refusalTime = time.Second

// Reach finds out whether the WFM is reachable, proves who it is and, with mutual TLS, accepts
// this device's certificate. It sends no request: some WFMs register a client on its first one.
func (c *Client) Reach(ctx context.Context) error {
	const op = "reach the WFM"
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, errSlow)
	defer cancel()
	if err := c.handshake(ctx); err != nil {
		return &connectionError{op, err}
	}
	return nil
}

func (c *Client) handshake(ctx context.Context) error {
	began := time.Now()
	plain, err := c.wire.Dial(ctx, "tcp", net.JoinHostPort(c.base.Hostname(), cmp.Or(c.base.Port(), defaultPort)))
	if err != nil {
		return err
	}
	defer plain.Close()
	config := c.wire.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName = c.base.Hostname()
	}
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	if err := plain.SetReadDeadline(time.Now().Add(max(refusalTime, 2*time.Since(began)))); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = plain.Close() })
	defer stop()
	_, err = conn.Read(make([]byte, 1))
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("it closed the connection after the handshake: %w", err)
	}
	return err
}
