package filter

import (
	"fmt"

	"github.com/distribution/reference"
)

// An imageRef is an image reference taken apart by the engine's own parser.
type imageRef struct{ name, tag, digest string }

func parseImage(s string) (imageRef, error) {
	if len(s) > maxImage {
		return imageRef{}, fmt.Errorf("an image reference is longer than %d bytes", maxImage)
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return imageRef{}, fmt.Errorf("image reference: %w", err)
	}
	// The engine looks an image up by id prefix when no name fits, so a name
	// that could be one is no name.
	if only(s, isLowerHex) {
		return imageRef{}, fmt.Errorf("image reference %q could be the prefix of an id", s)
	}
	ref := imageRef{name: named.Name()}
	if t, ok := named.(reference.Tagged); ok {
		ref.tag = t.Tag()
	}
	if d, ok := named.(reference.Digested); ok {
		ref.digest = d.Digest().String()
	}
	return ref, nil
}

// admitsImage reports whether a reference is listed: the same repository, and
// the same tag and digest where the list names them.
func (p *Policy) admitsImage(s string) bool {
	ref, err := parseImage(s)
	if err != nil {
		return false
	}
	for _, listed := range p.images {
		if ref.name == listed.name &&
			(listed.tag == "" || listed.tag == ref.tag) &&
			(listed.digest == "" || listed.digest == ref.digest) {
			return true
		}
	}
	return false
}
