package identity

// HasBundle reports whether there is a trust bundle to check a WFM against.
func (i *Identity) HasBundle() bool { return i.bundle.Load() != nil }

// Current is the last good bundle and its trust domain; nil if there is none.
func (s *BundleSource) Current() (trustDomain string, bundle *TrustBundle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	return s.kept.TrustDomain, s.bundle
}
