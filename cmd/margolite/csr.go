package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/cmd/command"
)

// csr requests a certificate with a new key that never leaves the device.
func (c *cli) csr(f *command.Flags) command.Action {
	var id, name, key, out string
	f.StringVar(&id, "id", "", "request an X.509-SVID for `SPIFFE-ID`: spiffe://DOMAIN/margo/wfm/WFM/client/CLIENT")
	f.StringVar(&name, "name", "", "request a certificate with this common `NAME` instead, for 1.0.0-rc.2 and older")
	f.StringVar(&key, "key", "", "private key `FILE`, created if missing; default: wfm.key of the configuration")
	f.StringVar(&out, "out,o", "", "write the request to `FILE` instead of standard output")
	return func(context.Context, []string) error { return c.makeRequest(id, name, key, out) }
}

func (c *cli) makeRequest(id, name, key, out string) error {
	subject := identity.Subject{Name: name}
	switch {
	case id == "" && name == "":
		return command.Usagef("give csr --id or --name")
	case id != "" && name != "":
		return command.Usagef("give csr --id or --name, not both")
	case id != "":
		parsed, err := identity.ParseSPIFFEID(id)
		if err == nil && parsed.Client == "" {
			err = fmt.Errorf("%q is the ID of a WFM, not of a device", id)
		}
		if err != nil {
			return command.Usagef("%v", err)
		}
		subject.ID = parsed
	}
	if key == "" {
		cfg, err := c.load(false)
		if err != nil {
			return err
		}
		key = cfg.WFM.Key
	}

	request, created, err := identity.Request(key, subject)
	var fault *identity.Error
	switch {
	case errors.As(err, &fault) && (fault.Reason == identity.WeakKey || fault.Reason == identity.Malformed):
		return command.Hint(err, "name a new file with --key; the existing one is not touched")
	case errors.As(err, &fault):
		return command.Hint(err, fault.Mend())
	case errors.Is(err, fs.ErrNotExist):
		return command.Hint(err, "create the directory of the key")
	case errors.Is(err, fs.ErrPermission):
		return command.Hint(err, "run this command as root, or name another file with --key")
	case err != nil:
		return err
	}
	if err := c.writeRequest(out, key, request); err != nil {
		return err
	}
	which := map[bool]string{false: "the", true: "a new"}[created]
	fmt.Fprintf(c.err, "The request is signed with %s private key in %s. Keep the key on this device.\n", which, key)
	return nil
}

func (c *cli) writeRequest(file, key string, request []byte) error {
	if file == "" {
		_, err := c.out.Write(request)
		return err
	}
	target, err := os.Stat(file)
	secret, keyErr := os.Stat(key)
	if err == nil && keyErr == nil && os.SameFile(target, secret) {
		return command.Usagef("--out names the file of the private key")
	}
	if err := os.WriteFile(file, request, 0o644); err != nil {
		return fmt.Errorf("cannot write the request: %w", err)
	}
	return nil
}
