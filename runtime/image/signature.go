package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/cosign"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/notation"
)

const (
	maxSignatures        = 64        // of what a registry names
	maxSignatureManifest = 1 << 20   // bytes
	maxSignature         = 256 << 10 // bytes of a payload, or of a bundle
)

// signersLabel of an image record lists the keys that signed its digest, separated by spaces.
const signersLabel = "margolite/signers"

// Keyring has files of PEM public keys by prefix of image names: a registry with any first elements of a
// path, as registry.example.com/vendor. The longest prefix wins; "*" is the default.
type Keyring map[string][]string

// filesFor returns the files for a repository; none: no signature can count.
func (k Keyring) filesFor(repository string) []string {
	files, longest := k["*"], 0
	for at, f := range k {
		if len(at) > longest && (repository == at || strings.HasPrefix(repository, at+"/")) {
			files, longest = f, len(at)
		}
	}
	return files
}

// Trust says who must have signed a package: one of the keys, or signers under a trust policy.
type Trust struct {
	Keys     Keyring // of cosign, by what the names of repositories begin with
	Notation string  // directory of Notation's trust policy and trust store; "": none
	Now      func() time.Time
}

// inquest prepares a search for signatures before the digest is known; nil: none is required.
func (t *Trust) inquest(ref reference.Named, log *slog.Logger) (*inquest, error) {
	if t == nil {
		return nil, nil
	}
	keys, err := ReadImageKeys(t.Keys.filesFor(ref.Name())...)
	if err != nil {
		return nil, err
	}
	var notary *notation.Verifier
	if t.Notation != "" {
		if notary, err = notation.Open(t.Notation, ref.Name(), t.Now(), log); err != nil {
			return nil, err
		}
	}
	q := newInquest(ref, keys, notary)
	if len(q.verifiers) == 0 {
		return nil, unsigned("no key is configured for it, and no trust policy")
	}
	return q, nil
}

func unsigned(why string) error { return &fault.Error{Code: fault.Unsigned, Err: errors.New(why)} }

// ReadImageKeys reads files of PEM public keys.
func ReadImageKeys(files ...string) (cosign.Keys, error) {
	return readKeys(files, cosign.MaxKeys, cosign.ParseKeys)
}

// Looked is the result of Look.
type Looked struct {
	Digest digest.Digest // that the reference stands for
	Signer string        // id of the key that signed it; empty: none of those that count
	Why    string        // there is no Signer, for people
}

// Look finds the digest of a wanted reference, and whether a key that counts for it has signed it. For
// an index, that covers every platform in it. Signatures come from where the image would: preloaded
// archives, mirrors, the registry; the image itself is not downloaded. An earlier result for a local
// image needs no network. An error means that the result is unknown.
func (i *Images) Look(ctx context.Context, w Want, ring Keyring) (l Looked, err error) {
	defer func() { err = fail(w.Ref, err) }()
	named, err := parse(w.Ref)
	if err != nil {
		return Looked{}, bad(err)
	}
	keys, err := ReadImageKeys(ring.filesFor(named.Name())...)
	if err != nil {
		return Looked{}, err
	}
	found, err := i.find(ctx, w, i.resolve)
	if err != nil {
		return Looked{}, err
	}
	l.Digest = found.Digest()
	if keys.Len() == 0 {
		l.Why = "no key is configured for it"
		return l, nil
	}
	record, err := i.o.Client.ImageService().Get(ctx, found.String())
	if err != nil && !errdefs.IsNotFound(err) {
		return Looked{}, fmt.Errorf("cannot determine who signed image: %w", err)
	}
	signers := strings.Fields(record.Labels[signersLabel])
	if at := slices.IndexFunc(signers, keys.Has); at >= 0 {
		l.Signer = signers[at]
		return l, nil
	}
	s, err := i.openFor(w)
	if err != nil {
		return Looked{}, err
	}
	q := newInquest(named, keys, nil)
	q.digest = found.Digest()
	err = s.try(ctx, i.o.Logger, func(h host) error { return h.inquire(ctx, q) })
	switch {
	case err == nil:
		l.Signer = q.signer
		i.o.Logger.Info("signature of image verified", "image", w.Ref, "digest", found.Digest().String(), "key", q.signer)
		// For one pulled before signatures were checked; Pull marks others.
		if err := i.mark(ctx, found.String(), signersLabel, q.signer, true); err != nil && !errdefs.IsNotFound(err) {
			return Looked{}, err
		}
	case errors.Is(err, errNever):
		l.Why = "this device has no signature of it, and its pull policy is never"
	case codeOf(err) == fault.Unsigned:
		l.Why = err.Error()
	default:
		return Looked{}, err
	}
	return l, nil
}

// verifier returns the signer of an image or package, or why the signature does not count.
type verifier interface {
	Verify(layer v1.Descriptor, payload []byte, of digest.Digest) (signer string, err error)
}

// inquest is a search for one signature that counts.
type inquest struct {
	named     reference.Named     // the repository
	digest    digest.Digest       // of the image or package
	verifiers map[string]verifier // of signatures, by their media types; others don't count

	// What the host asked last has.
	archived bool   // signatures among others, of which only those for this image are told of
	signer   string // when it was found
	seen     int    // signatures that do not count
	why      error  // the last of them
}

func newInquest(ref reference.Named, keys cosign.Keys, notary *notation.Verifier) *inquest {
	q := &inquest{named: reference.TrimNamed(ref), verifiers: make(map[string]verifier)}
	if keys.Len() > 0 {
		q.verifiers[cosign.SimpleType], q.verifiers[cosign.BundleType] = keys, keys
	}
	if notary != nil {
		q.verifiers[notation.JWSType], q.verifiers[notation.COSEType] = notary, notary
	}
	return q
}

func (q *inquest) dismiss(err error) {
	if q.archived && !errors.Is(err, cosign.ErrOtherKey) {
		return
	}
	q.seen++
	q.why = err
}

// verdict says why no signature of a host counts; another host may have one that does.
func (q *inquest) verdict() error {
	short := q.digest.Algorithm().String() + ":" + q.digest.Encoded()[:12]
	why := "there is no signature of " + short
	switch {
	case q.seen == 1:
		why = fmt.Sprintf("the signature of %s is not valid: %v", short, q.why)
	case q.seen > 1:
		why = fmt.Sprintf("none of %d signatures of %s is valid: %v", q.seen, short, q.why)
	}
	if errors.Is(q.why, notation.ErrEarly) { // which passes
		return errors.New(why)
	}
	return unsigned(why)
}

// inquire checks the signatures of a host until one counts.
func (h host) inquire(ctx context.Context, q *inquest) error {
	q.seen, q.why, q.archived = 0, nil, !h.network
	for desc, err := range h.signatures(ctx, q) {
		if err == nil {
			err = h.weigh(ctx, desc, q)
		}
		switch code := codeOf(err); {
		case q.signer != "":
			return nil
		case err == nil:
		case code == fault.InvalidPackage: // an unreadable one is no signature
			q.dismiss(err)
		default:
			return &fault.Error{Code: code, Err: fmt.Errorf("cannot determine whether it is signed: %w", err)}
		}
	}
	return q.verdict()
}

// signatures are a host's manifests that may hold signatures: under a tag made of the digest, as cosign
// before version 3 stores them, and referrers of the image, as with cosign 3 and Notation.
func (h host) signatures(ctx context.Context, q *inquest) iter.Seq2[v1.Descriptor, error] {
	return func(yield func(v1.Descriptor, error) bool) {
		tag, err := reference.WithTag(q.named, q.digest.Algorithm().String()+"-"+q.digest.Encoded()+".sig")
		if err == nil && h.network && q.verifiers[cosign.SimpleType] != nil {
			desc, err := h.Resolve(ctx, tag)
			if err != nil {
				err = remote{err}
			}
			if !errdefs.IsNotFound(err) && !yield(desc, err) {
				return
			}
		}
		ctx, cancel := h.asking(ctx)
		defer cancel()
		refer, err := h.Referrers(ctx, q.named, q.digest)
		if err != nil {
			yield(v1.Descriptor{}, remote{fmt.Errorf("cannot look up signatures: %w", err)})
			return
		}
		refer = slices.DeleteFunc(refer, func(desc v1.Descriptor) bool { return !q.mayBeIn(desc) })
		for n, desc := range refer {
			if h.network && n == maxSignatures {
				yield(v1.Descriptor{}, tooMany())
				return
			}
			if !yield(desc, nil) {
				return
			}
		}
	}
}

// mayBeIn excludes SBOMs and attestations among the referrers of an image.
func (q *inquest) mayBeIn(desc v1.Descriptor) bool {
	switch desc.ArtifactType {
	case cosign.BundleType:
	case notation.ArtifactType:
		return q.verifiers[notation.JWSType] != nil
	case "application/vnd.dev.cosign.artifact.sig.v1+json": // of cosign 2, when it was told to
	case v1.MediaTypeEmptyJSON, "": // of registries that report the configuration's type
	default:
		return false
	}
	predicate, said := desc.Annotations[cosign.PredicateAnnotation]
	return !said || predicate == cosign.SignPredicate
}

func tooMany() error { return bad(fmt.Errorf("it has more than %d signatures", maxSignatures)) }

// weigh checks the signatures in a manifest until one counts.
func (h host) weigh(ctx context.Context, desc v1.Descriptor, q *inquest) error {
	manifest, err := h.bytes(ctx, q.named, desc, maxSignatureManifest, silent())
	if err != nil {
		return err
	}
	layers, err := signaturesIn(manifest, q.verifiers)
	if err != nil {
		return err
	}
	var payload []byte
	for n, layer := range layers {
		if n == 0 || layer.Digest != layers[n-1].Digest { // several have signed the same
			if payload, err = h.bytes(ctx, q.named, layer, maxSignature, silent()); err != nil {
				return err
			}
		}
		signer, err := q.verifiers[layer.MediaType].Verify(layer, payload, q.digest)
		if err == nil {
			q.signer = signer
			return nil
		}
		q.dismiss(err)
	}
	return nil
}

// signaturesIn returns the layers of a manifest with signatures of accepted media types.
func signaturesIn(data []byte, counting map[string]verifier) ([]v1.Descriptor, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, bad(fmt.Errorf("cannot read manifest of signatures: %w", err))
	}
	var layers []v1.Descriptor
	for _, layer := range manifest.Layers {
		if counting[layer.MediaType] == nil {
			continue
		}
		if err := layer.Digest.Validate(); err != nil {
			return nil, bad(fmt.Errorf("cannot read manifest of signatures: %w", err))
		}
		if len(layers) == maxSignatures {
			return nil, tooMany()
		}
		layer.URLs, layer.Data = nil, nil
		layers = append(layers, layer)
	}
	return layers, nil
}
