package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/cosign"
	"github.com/margolite/margolite/runtime/notation"
	"github.com/margolite/margolite/runtime/registry"
)

// Bounds of the signatures of an image.
const (
	maxSignatures        = 64
	maxSignatureManifest = 1 << 20   // bytes
	maxArchivedManifest  = 64 << 10  // bytes; bigger parts of archives are not looked at
	maxSignature         = 256 << 10 // bytes of a payload, or of a bundle
	maxSigners           = 16        // keys that are remembered
)

// signersLabel holds the ids of the keys that an image record was found to be signed by, with spaces between them. The
// digest in its name is what they signed.
const signersLabel = "margolite/signers"

// Keyring are files of PEM public keys by what the names of images begin with: a registry, with the first parts of a
// path or without, as registry.example.com/vendor. Of several the longest counts; "*" is for whatever else there is.
type Keyring map[string][]string

// filesFor are the files for a repository; none: nobody can have signed it.
func (k Keyring) filesFor(repository string) []string {
	files, longest := k["*"], 0
	for at, f := range k {
		if len(at) > longest && (repository == at || strings.HasPrefix(repository, at+"/")) {
			files, longest = f, len(at)
		}
	}
	return files
}

// Trust says by whom a package has to be signed: by one of the keys, or as a trust policy wants it.
type Trust struct {
	Keys     Keyring // of cosign, by what the names of repositories begin with
	Notation string  // directory of Notation's trust policy and trust store; "": none
	Now      func() time.Time
}

// inquest looks for a signature of what a reference stands for; nil: it need not have one. The digest is still to be
// found out.
func (t *Trust) inquest(ref reference.Named, log *slog.Logger) (*inquest, error) {
	if t == nil {
		return nil, nil
	}
	q := &inquest{named: reference.TrimNamed(ref)}
	var err error
	if q.keys, err = ReadImageKeys(t.Keys.filesFor(ref.Name())...); err != nil {
		return nil, err
	}
	if t.Notation != "" {
		if q.notary, err = notation.Open(t.Notation, ref.Name(), t.Now(), log); err != nil {
			return nil, err
		}
	}
	if q.keys.Len() == 0 && q.notary == nil {
		return nil, unsigned("no key is configured for it, and no trust policy")
	}
	return q, nil
}

// unsigned says why what has to be signed is not.
func unsigned(why string) error { return &Error{Kind: Unsigned, Err: errors.New(why)} }

// undetermined keeps trouble on the way to signatures apart from having none.
func undetermined(err error) error {
	if errors.Is(err, errUnsigned) {
		return err
	}
	return &Error{Kind: kindOf(err), Err: fmt.Errorf("cannot determine whether it is signed: %w", err)}
}

// ReadImageKeys reads files of PEM public keys.
func ReadImageKeys(files ...string) (cosign.Keys, error) {
	return readKeys(files, cosign.MaxKeys, cosign.ParseKeys)
}

// Looked is what was found out about an image before it is pulled.
type Looked struct {
	Digest digest.Digest // that the reference stands for
	Signer string        // id of the key that signed it; empty: none of those that count
	Why    string        // there is no Signer, for people
}

// Look finds out what a wanted reference stands for, and whether that is signed by a key that counts for it. Signed is
// the digest that the reference stands for: of the index, where it is one, and thus every platform in it. Signatures
// come from where the image would come: preloaded archives, mirrors, the registry; nothing of the image does. What was
// found before for an image that is here needs no network. An error says that it could not be found out.
func (i *Images) Look(ctx context.Context, w Want, keys Keyring) (Looked, error) {
	l, err := i.lookAt(ctx, w, keys)
	return l, fail(w.Ref, err)
}

func (i *Images) lookAt(ctx context.Context, w Want, ring Keyring) (Looked, error) {
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
	l := Looked{Digest: found.digest}
	if keys.Len() == 0 {
		l.Why = "no key is configured for it"
		return l, nil
	}
	signers, err := i.signersOf(ctx, pinned(named, found.digest))
	if err != nil {
		return Looked{}, err
	}
	if at := slices.IndexFunc(signers, keys.Has); at >= 0 {
		l.Signer = signers[at]
		return l, nil
	}
	s, err := i.openFor(w)
	if err != nil {
		return Looked{}, err
	}
	defer s.close()
	q := inquest{named: reference.TrimNamed(named), digest: found.digest, keys: keys}
	err = s.try(ctx, i.log, func(h host) error { return h.inquire(ctx, &q) })
	switch {
	case q.signer != "":
		l.Signer = q.signer
		i.log.Info("signature of image verified", "image", w.Ref, "digest", found.digest.String(), "key", q.signer)
		// One that came before anybody asked; of the others Pull takes care.
		if err := i.sign(ctx, pinned(named, found.digest), q.signer); err != nil && !errdefs.IsNotFound(err) {
			return Looked{}, err
		}
	case errors.Is(err, errNever):
		l.Why = "this device has no signature of it, and its pull policy is never"
	case err != nil && !errors.Is(err, errUnsigned):
		return Looked{}, undetermined(err)
	default:
		l.Why = q.verdict()
	}
	return l, nil
}

// signersOf are the keys that an image here is known to be signed by.
func (i *Images) signersOf(ctx context.Context, name string) ([]string, error) {
	record, err := i.client.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot determine who signed image: %w", err)
	}
	return strings.Fields(record.Labels[signersLabel]), nil
}

// sign remembers who signed an image that is here, so that nobody has to be asked again.
func (i *Images) sign(ctx context.Context, name, signer string) error {
	record, err := i.client.ImageService().Get(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot record who signed image: %w", err)
	}
	if record.Labels[ownLabel] == "" { // somebody else's
		return nil
	}
	signers := strings.Fields(record.Labels[signersLabel])
	if slices.Contains(signers, signer) {
		return nil
	}
	signers = append(signers, signer)
	signers = signers[max(0, len(signers)-maxSigners):]
	return i.setLabel(ctx, record, signersLabel, signers)
}

// inquest looks for one signature that counts.
type inquest struct {
	named  reference.Named // the repository
	digest digest.Digest   // of the image or package
	keys   cosign.Keys
	notary *notation.Verifier // nil: signatures of Notation do not count

	// What the host that was asked last has.
	signer string // when it was found
	seen   int    // signatures that do not count
	why    error  // the last of them
}

// errUnsigned says that a host knows no signature that counts; another may.
var errUnsigned = errors.New("it has no valid signature")

// counts says whether there is something to verify signatures of a media type by.
func (q *inquest) counts(mediaType string) bool {
	switch mediaType {
	case cosign.BundleType, cosign.SimpleType:
		return q.keys.Len() > 0
	case notation.JWSType, notation.COSEType:
		return q.notary != nil
	}
	return false
}

// weigh looks at one signature, and says whether it is the one.
func (q *inquest) weigh(layer v1.Descriptor, payload []byte) bool {
	var err error
	if q.signer, err = q.verify(layer, payload); err != nil {
		q.dismiss(err)
	}
	return q.signer != ""
}

// verify returns who made a signature, or why it does not count.
func (q *inquest) verify(layer v1.Descriptor, payload []byte) (signer string, err error) {
	var s cosign.Signature
	switch layer.MediaType {
	case notation.JWSType, notation.COSEType:
		return q.notary.Verify(layer.MediaType, payload, q.digest)
	case cosign.BundleType:
		s, err = cosign.ParseBundle(payload)
	default:
		s, err = cosign.ParseSimple(payload, layer.Annotations[cosign.SignatureAnnotation])
	}
	if err != nil {
		return "", err
	}
	return s.Verify(q.digest, q.keys)
}

func (q *inquest) dismiss(err error) {
	q.seen++
	q.why = err
}

// verdict says why none counts.
func (q *inquest) verdict() string {
	switch {
	case q.seen == 0:
		return "there is no signature of " + short(q.digest)
	case q.seen == 1:
		return fmt.Sprintf("the signature of %s is not valid: %v", short(q.digest), q.why)
	}
	return fmt.Sprintf("none of %d signatures of %s is valid: %v", q.seen, short(q.digest), q.why)
}

// short is as much of a digest as tells it from others.
func short(d digest.Digest) string { return d.Algorithm().String() + ":" + d.Encoded()[:12] }

// inquire looks through the signatures that a host has, until one counts.
func (h host) inquire(ctx context.Context, q *inquest) error {
	q.seen, q.why = 0, nil
	sources := []func(context.Context, *inquest) error{h.inquireTag, h.inquireReferrers}
	switch {
	case !h.network:
		sources = []func(context.Context, *inquest) error{h.inquireArchives}
	case q.keys.Len() == 0:
		sources = sources[1:]
	}
	for _, ask := range sources {
		err := ask(ctx, q)
		switch {
		case q.signer != "":
			return nil
		case err != nil && kindOf(err) == BadContent: // what nobody can read is no signature
			q.dismiss(err)
		case err != nil:
			return err
		}
	}
	return errUnsigned
}

// inquireTag looks at what lies under a tag which is made of the digest, where all versions of cosign but the latest put
// signatures.
func (h host) inquireTag(ctx context.Context, q *inquest) error {
	tagged, err := reference.WithTag(q.named, tagOf(q.digest)+".sig")
	if err != nil {
		return bad(err)
	}
	desc, err := h.Resolve(ctx, tagged)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return remote{err}
	}
	return h.weigh(ctx, desc, q)
}

// tagOf is how a digest is written as a tag.
func tagOf(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

// inquireReferrers looks at what says of itself that it refers to the image, as the latest cosign and Notation do it.
func (h host) inquireReferrers(ctx context.Context, q *inquest) error {
	asking, cancel := h.asking(ctx)
	refer, err := h.source.(*registry.Client).Referrers(asking, q.named, q.digest)
	cancel()
	if err != nil {
		return remote{fmt.Errorf("cannot look up signatures: %w", err)}
	}
	looked := 0
	for _, desc := range refer {
		if !q.mayBeIn(desc) {
			continue
		}
		if looked++; looked > maxSignatures {
			return tooMany()
		}
		err := h.weigh(ctx, desc, q)
		switch {
		case q.signer != "":
			return nil
		case err != nil && kindOf(err) == BadContent:
			q.dismiss(err)
		case err != nil:
			return err
		}
	}
	return nil
}

// mayBeIn says whether what refers to an image is worth a look: it is no SBOM and no attestation.
func (q *inquest) mayBeIn(desc v1.Descriptor) bool {
	switch desc.ArtifactType {
	case cosign.BundleType:
	case notation.ArtifactType:
		return q.notary != nil
	case "application/vnd.dev.cosign.artifact.sig.v1+json": // of cosign 2, when it was told to
	case v1.MediaTypeEmptyJSON, "": // what a registry says that takes the type of the configuration for it
	default:
		return false
	}
	predicate, said := desc.Annotations[cosign.PredicateAnnotation]
	return !said || predicate == cosign.SignPredicate
}

// inquireArchives looks through the signatures that lie in archives, beside the image or in an archive of their own.
// Whose they are stands in what was signed, and that they are signatures in themselves: cosign 3 saves bundles that the
// index of their archive does not name.
func (h host) inquireArchives(ctx context.Context, q *inquest) error {
	for _, a := range h.source.(preloaded).archives {
		for _, d := range slices.Sorted(maps.Keys(a.blobs)) {
			desc := v1.Descriptor{Digest: d, Size: a.blobs[d].size}
			if desc.Size > maxArchivedManifest {
				continue
			}
			held := inquest{named: q.named, digest: q.digest, keys: q.keys}
			err := h.weigh(ctx, desc, &held)
			switch {
			case held.signer != "":
				q.signer = held.signer
				return nil
			case err != nil && kindOf(err) != BadContent:
				return err
			case errors.Is(held.why, cosign.ErrOtherKey):
				q.dismiss(held.why)
			}
		}
	}
	return nil
}

func tooMany() error { return bad(fmt.Errorf("it has more than %d signatures", maxSignatures)) }

// weigh looks at the signatures that a manifest holds.
func (h host) weigh(ctx context.Context, desc v1.Descriptor, q *inquest) error {
	manifest, err := h.bytes(ctx, q.named, desc, maxSignatureManifest, silent())
	if err != nil {
		return err
	}
	layers, err := signaturesIn(manifest, q.counts)
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
		if q.weigh(layer, payload) {
			return nil
		}
	}
	return nil
}

// signaturesIn are the layers of a manifest that hold signatures, of the media types that count.
func signaturesIn(data []byte, counts func(mediaType string) bool) ([]v1.Descriptor, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, bad(fmt.Errorf("cannot read manifest of signatures: %w", err))
	}
	var layers []v1.Descriptor
	for _, layer := range manifest.Layers {
		if !counts(layer.MediaType) {
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
