package pgp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/fault"
)

// program is the verifier: GnuPG's, or a compatible one.
const program = "gpgv"

// ErrNoProgram says that this device cannot verify signatures.
var ErrNoProgram = errors.New("gpgv is not in PATH (package gpgv or GnuPG)")

const (
	timeout  = 2 * time.Minute // for gpgv: seconds on slow devices
	patience = 5 * time.Second // until a gpgv that was killed lets go of its pipes
	maxWords = 64 << 10        // bytes that gpgv says
	nobody   = 65534           // the user that owns nothing
)

// invalid says why keys, a signature or its data do not count. Any other error is the device's.
func invalid(err error) error { return &fault.Error{Code: fault.InvalidPackage, Err: err} }

// Find checks that there is a verifier. The error wraps ErrNoProgram.
func Find() error {
	_, err := find()
	return err
}

func find() (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("cannot verify an OpenPGP signature: %w", ErrNoProgram)
	}
	return path, nil
}

// Verify returns the fingerprint of the key that signed exactly data, for a subkey that of its
// primary key. One good signature by one of the keys is enough; it and the key must be valid
// today. Without one, the error has the code fault.InvalidPackage.
func (k Keys) Verify(ctx context.Context, s Signature, data []byte) (signer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said, err := k.ask(ctx, s, data)
	if ctx.Err() != nil {
		return "", fmt.Errorf("cannot verify an OpenPGP signature: gpgv: %w", context.Cause(ctx))
	}
	if err != nil {
		return "", err
	}
	return judge(said)
}

// ask returns the status lines of gpgv, or an error of this device.
func (k Keys) ask(ctx context.Context, s Signature, data []byte) (said []byte, err error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot verify an OpenPGP signature: %w", err)
		}
	}()
	var files []*os.File
	for _, data := range [][]byte{nil, k.packets, s.packets} {
		f, err := held(data)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files = append(files, f)
	}
	status := files[0]

	cmd := exec.CommandContext(ctx, path,
		// The clock of a device may be behind. Expiry is not affected.
		"--ignore-time-conflict",
		"--homedir", "/nonexistent",
		"--status-fd", "3",
		"--keyring", "/proc/self/fd/4",
		"--", "/proc/self/fd/5", "-")
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	cmd.ExtraFiles = files // from 3 on
	cmd.Stdin = bytes.NewReader(data)
	cmd.WaitDelay = patience
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		return nil, fmt.Errorf("gpgv: %w", err) // it did not start, or did not come to its end
	}
	// The exit code is not 0 if one of several keys is unknown, and 0 if the key has expired.
	if _, err := status.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(status, maxWords))
}

func held(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("margolite-gpgv", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "gpgv")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write a file in memory: %w", err)
	}
	return f, nil
}

// Fields of the status line VALIDSIG (doc/DETAILS of GnuPG).
const (
	fieldKey     = 0 // fingerprint
	fieldHash    = 7 // algorithm, by its number in RFC 9580 9.5
	fieldClass   = 8 // type of the signature, in hexadecimal
	fieldPrimary = 9 // fingerprint
)

// judge reads gpgv's verdict on each signature, and its VALIDSIG if it is mathematically correct.
func judge(said []byte) (signer string, err error) {
	reason := "gpgv finds no readable signature in it"
	good := false
	for line := range strings.Lines(string(said)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "[GNUPG:]" {
			continue
		}
		word, fields := fields[1], fields[2:]
		switch word {
		case "NEWSIG":
			good = false
		case "GOODSIG":
			good = true
		case "BADSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG", "ERRSIG":
			good = false
			reason = reasonOf(word, fields)
		case "VALIDSIG":
			if !good {
				continue
			}
			good = false
			if problem := unfit(fields); problem != "" {
				reason = problem
				continue
			}
			if len(fields) > fieldPrimary {
				return fields[fieldPrimary], nil
			}
			return fields[fieldKey], nil
		}
	}
	return "", invalid(errors.New(reason))
}

func reasonOf(word string, fields []string) string {
	key := "an unknown key"
	if len(fields) > 0 {
		key = fmt.Sprintf("key %.40s", fields[0])
	}
	switch word {
	case "BADSIG":
		return "the signature by " + key + " is for other data"
	case "EXPSIG":
		return "the signature by " + key + " has expired"
	case "EXPKEYSIG":
		return "the signature is by " + key + ", which has expired"
	case "REVKEYSIG":
		return "the signature is by " + key + ", which was revoked"
	}
	const unknown = "9" // the sixth field of ERRSIG: the key is missing
	if len(fields) > 5 && fields[5] == unknown {
		return "the signature is by " + key + ", which is not one of the keys"
	}
	return "the signature by " + key + " cannot be verified: gpgv does not know its algorithm, or the key is damaged"
}

// unfit says why a correct signature is not good enough, or "".
func unfit(fields []string) string {
	if len(fields) <= fieldClass {
		return "gpgv reports too little about the signature"
	}
	switch fields[fieldHash] {
	case "1", "2", "3": // MD5, SHA-1, RIPEMD-160
		return "the signature uses a broken hash; sign with SHA-256 or better"
	}
	if fields[fieldClass] != "00" {
		return "the signature does not cover the file byte by byte"
	}
	return ""
}
