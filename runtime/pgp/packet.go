package pgp

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

const (
	MaxKeys      = 256 << 10 // bytes of one file of keys
	MaxSignature = 64 << 10  // bytes of one file of signatures

	maxKeyPackets = 4096
	maxSignatures = 16
)

// Keys are OpenPGP public keys, each with its subkeys and their bindings. The zero value is empty.
type Keys struct{ packets []byte }

// ParseKeys parses public keys, armored or not. The error says what data is instead.
func ParseKeys(data []byte) (Keys, error) {
	packets, err := parse(data, "PUBLIC KEY BLOCK", MaxKeys, keyRules)
	if err != nil {
		return Keys{}, invalid(fmt.Errorf("not OpenPGP public keys: %w", err))
	}
	return Keys{packets}, nil
}

// With returns the keys of both.
func (k Keys) With(more Keys) Keys {
	return Keys{append(bytes.Clone(k.packets), more.packets...)}
}

// Signature is at least one detached OpenPGP signature.
type Signature struct{ packets []byte }

// ParseSignature parses detached signatures, armored or not. The error says what data is instead.
func ParseSignature(data []byte) (Signature, error) {
	packets, err := parse(data, "SIGNATURE", MaxSignature, signatureRules)
	if err != nil {
		return Signature{}, invalid(fmt.Errorf("not a detached OpenPGP signature: %w", err))
	}
	return Signature{packets}, nil
}

// Tags of OpenPGP packets (RFC 9580 5).
const (
	tagSignature     = 2
	tagSecretKey     = 5
	tagPublicKey     = 6
	tagSecretSubkey  = 7
	tagMarker        = 10
	tagTrust         = 12
	tagUserID        = 13
	tagPublicSubkey  = 14
	tagUserAttribute = 17
	tagPadding       = 21
)

type rules struct {
	first int // the tag of the first packet
	tags  []int
	most  int // packets
}

var (
	keyRules = rules{tagPublicKey, []int{
		tagPublicKey, tagPublicSubkey, tagUserID, tagUserAttribute, tagSignature, tagTrust, tagMarker, tagPadding,
	}, maxKeyPackets}
	// Other packets could bring their own data instead of the data to verify.
	signatureRules = rules{tagSignature, []int{tagSignature}, maxSignatures}
)

func parse(data []byte, label string, limit int, r rules) ([]byte, error) {
	if len(data) > limit {
		return nil, fmt.Errorf("%d bytes, more than %d", len(data), limit)
	}
	if len(data) > 0 && data[0] < 0x80 { // every packet begins with that bit
		var err error
		if data, err = dearmor(data, label); err != nil {
			return nil, err
		}
	}
	if len(data) == 0 {
		return nil, errors.New("it is empty")
	}
	count := 0
	for rest := data; len(rest) > 0; count++ {
		tag, size, err := next(rest)
		switch {
		case err != nil:
			return nil, err
		case count == r.most:
			return nil, fmt.Errorf("more than %d packets", r.most)
		case count == 0 && tag != r.first, !slices.Contains(r.tags, tag):
			return nil, misplaced(tag)
		}
		rest = rest[size:]
	}
	return data, nil
}

func misplaced(tag int) error {
	if tag == tagSecretKey || tag == tagSecretSubkey {
		return errors.New("it holds a private key, which must stay with the signer")
	}
	return fmt.Errorf("it has a packet of type %d", tag)
}

var errCut = errors.New("a packet is incomplete")

// next parses a packet header (RFC 9580 4.2): tag, and size with it. It refuses unknown lengths.
func next(data []byte) (tag, size int, err error) {
	head := data[0]
	if head&0x80 == 0 {
		return 0, 0, errors.New("there is unexpected data between its packets")
	}
	header, length := 0, uint32(0)
	if head&0x40 != 0 {
		tag = int(head & 0x3f)
		header, length, err = newLength(data)
	} else {
		tag = int(head >> 2 & 0x0f)
		header, length, err = oldLength(data)
	}
	if err != nil {
		return 0, 0, err
	}
	if uint64(length) > uint64(len(data)-header) {
		return 0, 0, errCut
	}
	return tag, header + int(length), nil
}

func newLength(data []byte) (header int, length uint32, err error) {
	if len(data) < 2 {
		return 0, 0, errCut
	}
	switch first := data[1]; {
	case first < 192:
		return 2, uint32(first), nil
	case first < 224:
		if len(data) < 3 {
			return 0, 0, errCut
		}
		return 3, uint32(first-192)<<8 + uint32(data[2]) + 192, nil
	case first == 255:
		if len(data) < 6 {
			return 0, 0, errCut
		}
		return 6, binary.BigEndian.Uint32(data[2:]), nil
	}
	return 0, 0, errors.New("a packet is split into parts")
}

func oldLength(data []byte) (header int, length uint32, err error) {
	octets := 1 << (data[0] & 3)
	switch {
	case octets == 8:
		return 0, 0, errors.New("a packet has no length")
	case len(data) < 1+octets:
		return 0, 0, errCut
	}
	for _, b := range data[1 : 1+octets] {
		length = length<<8 | uint32(b)
	}
	return 1 + octets, length, nil
}

// dearmor joins the armored blocks with a label (RFC 9580 6), without text around them or checksums.
func dearmor(data []byte, label string) ([]byte, error) {
	begin, end := "-----BEGIN PGP "+label+"-----", "-----END PGP "+label+"-----"
	var packets, block []byte
	inside, head, blocks := false, false, 0
	for line := range bytes.Lines(data) {
		line = bytes.TrimSpace(line)
		switch {
		case !inside:
			inside = string(line) == begin
			head, block = true, nil
		case string(line) == end:
			inside = false
			content, err := base64.StdEncoding.AppendDecode(packets, block)
			if err != nil {
				return nil, errors.New("its armor is damaged")
			}
			packets = content
			blocks++
		case head && bytes.Contains(line, []byte(":")): // which base64 never has
		case len(line) == 5 && line[0] == '=': // the checksum
		default:
			head = false
			block = append(block, line...)
		}
	}
	switch {
	case inside:
		return nil, errors.New("its armor has no end")
	case blocks == 0:
		return nil, fmt.Errorf("it has neither packets nor a line %s", begin)
	}
	return packets, nil
}
